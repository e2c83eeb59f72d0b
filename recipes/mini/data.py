"""Make the data that the pipeline cannot read as published.

python -m recipes.mini.data DATA OUT

wiki-rest.txt, wiki-dev.txt     last Wikipedia file: its last documents are held out for scores
trec-6/{train,dev}.jsonl        dev is every eleventh question of train, as TREC-6 has no dev set; no duplicates
sst-2/{train,dev,test}.jsonl    labels as words
ag-news/test.jsonl              title and description as one text, as in a third of train
squad-v1.json                   both parts of SQuAD's training sets, and SQuADShifts; without duplicate questions
squad-v2.json                   the same with unanswerable questions: SQuAD's and synthetic ones
squad-changed.json              the same with more unanswerable ones: changed questions, and questions on other articles
cloze.json                      synthetic cloze questions on Wikipedia, without text of SQuAD's dev sets
sentences-part.txt              sentences of Wikipedia, books and the paragraphs of SQuAD and SQuADShifts
paragraphs.txt                  paragraphs of Wikipedia
reviews.txt                     sentences of reviews and forum posts (SQuADShifts)
questions.jsonl                 questions with the paragraphs that answer them
names/wnut17.conll              WNUT-17 with WikiANN's types
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import tyro

from recipes.mini.changed import changed_question
from recipes.mini.cloze import cloze_question
from tasks.bundle.files import atomic_write
from training.command_line.command import command, parse
from training.data.tables import read_rows
from training.text.documents import parse_json, read_lines
from training.text.sentences import split_sentences

DEV_DOCUMENTS = 60
"""Number of Wikipedia documents that are held out."""
SENTIMENTS = {"0": "negative", "1": "positive"}
"""Names of SST-2's labels, in their order."""
TREC_DEV_INTERVAL = 11
"""Every n-th question of TREC-6 is held out."""
UNANSWERABLE = 0.5
"""Number of unanswerable questions for each answerable one; SQuAD v2.0 has 1.02 in dev and 0.5 in train."""
ELSEWHERE = "-elsewhere-"
"""Part of the ids of questions about another paragraph."""
CHANGED, FOREIGN, KEPT = 0.75, 0.3, 0.5
"""Changed questions for each answerable one, questions on another article for each paragraph, and the fraction of those
on another paragraph that stay. Together, half of all questions are unanswerable, as in SQuAD v2.0's dev."""
SQUAD = ("squad/train-v1.1-part.json.xz", "squad/train-v2.0-part.json.xz")
SQUAD_DEV = ("squad/dev-v1.1-part.json.xz", "squad/dev-v2.0-part.json.xz")
SHIFTS = tuple(f"squadshifts/{name}_v1.0.json.xz" for name in ("new_wiki", "reddit", "amazon_reviews"))

CLOZE_FILES = tuple(f"wiki-{number:02}" for number in range(6))
BOOK_FILES = tuple(f"books-{number:02}" for number in range(4))
ENTITIES = {"person": "PER", "location": "LOC", "corporation": "ORG", "group": "ORG"}
"""Types of WNUT-17 that are also types of WikiANN."""
STS_DEV = "glue/STS-B/dev.tsv.xz"

NUM_SENTENCES, NUM_PART, NUM_PARAGRAPHS = 500_000, 100_000, 60_000
SHORTEST, LONGEST = 4, 60
"""Smallest and largest number of words of a sentence."""
PARAGRAPH_WORDS = (30, 180)
"""Smallest and largest number of words of a paragraph."""
Paragraph = dict[str, Any]
Titled = tuple[str, Paragraph]
"""Title of an article, and a paragraph of it in SQuAD's format."""


@dataclass(frozen=True, kw_only=True)
class DataArguments:
    """Make the derived data."""

    data: Annotated[Path, tyro.conf.Positional]
    """Folder of the published data: glue/, squad/, pretrain/ ... (docs/results.md)."""
    out: Annotated[Path, tyro.conf.Positional]
    """Folder to write."""


@command
def main() -> None:
    """Command line."""
    arguments = parse(DataArguments, "recipes.mini.data", __doc__)
    for name, content in build(arguments.data):
        atomic_write(arguments.out / name, content.encode())
        print(f"{arguments.out / name}: {len(content):,} characters", flush=True)


def build(data: Path) -> Iterator[tuple[str, str]]:
    """Yield name and content of each file."""
    documents = _text(data / "pretrain/wiki-06.txt.xz").strip().split("\n\n")
    rest, dev = ("\n\n".join(part) + "\n" for part in (documents[:-DEV_DOCUMENTS], documents[-DEV_DOCUMENTS:]))
    yield "wiki-rest.txt", rest
    yield "wiki-dev.txt", dev
    train, held_out = split_questions(read_table(data / "topic/trec-6/train.tsv.xz", "text", "label"))
    yield "trec-6/train.jsonl", json_lines(train)
    yield "trec-6/dev.jsonl", json_lines(held_out)
    for split in ("train", "dev", "test"):
        rows = read_table(data / f"glue/SST-2/{split}.tsv.xz", "sentence", "label")
        named = ({"text": row["sentence"], "label": SENTIMENTS[row["label"]]} for row in rows)
        yield f"sst-2/{split}.jsonl", json_lines(named)
    news = read_table(data / "topic/ag_news-subset/test.tsv.xz", "title", "text", "label")
    yield "ag-news/test.jsonl", json_lines({"text": f"{x['title']} {x['text']}", "label": x["label"]} for x in news)
    paragraphs = merge(squad_file(data / name) for name in (*SQUAD, *SHIFTS))
    yield "squad-v1.json", squad_text(answerable(paragraphs))
    mixed = with_unanswerable(paragraphs, random.Random(0))
    yield "squad-v2.json", squad_text(mixed)
    yield "squad-changed.json", squad_text(with_changed(mixed, random.Random(0)))
    yield "cloze.json", squad_text(cloze_questions(data))
    yield from _for_distillation(data, rest, answerable(paragraphs))


def _for_distillation(data: Path, rest: str, paragraphs: Sequence[Titled]) -> Iterator[tuple[str, str]]:
    """Yield name and content of the files that only distillation needs.

    Args:
        rest: text of wiki-rest.txt.
        paragraphs: paragraphs of SQuAD with answerable questions.
    """
    pairs = read_table(data / STS_DEV, "sentence1", "sentence2")
    held_out = {_letters(row[key]) for row in pairs for key in ("sentence1", "sentence2")}
    held_out |= {_letters(sentence) for sentence in _sentences_of_squad_dev(data)}
    wiki, books = (
        [line for name in names for line in _text(data / f"pretrain/{name}.txt.xz").split("\n")]
        for names in (CLOZE_FILES, BOOK_FILES)
    )
    wiki += rest.split("\n")
    contexts = [paragraph["context"] for _, paragraph in paragraphs]
    posts = [paragraph["context"] for _, paragraph in merge(squad_file(data / name) for name in SHIFTS[1:])]
    known = list(sentences([*wiki, *books, *contexts], held_out))
    # A part of a larger sample, as the shipped models learnt from it.
    chosen = random.Random(0).sample(known, min(NUM_SENTENCES, len(known)))
    yield "sentences-part.txt", _lines(chosen[:NUM_PART])
    yield "paragraphs.txt", _lines(sample_paragraphs(wiki, held_out))
    yield "reviews.txt", _lines(sentences(posts, held_out))
    questions = (
        {"text": item["question"], "text_pair": paragraph["context"]}
        for _, paragraph in paragraphs
        for item in paragraph["qas"]
    )
    yield "questions.jsonl", json_lines(questions)
    wnut = read_lines(_existing(data / "ner/wnut17/train.conll.xz"))
    yield "names/wnut17.conll", "".join(f"{line}\n" for line in with_types_of_wikiann(wnut))


def _sentences_of_squad_dev(data: Path) -> list[str]:
    contexts = {paragraph["context"] for _, paragraph in merge(squad_file(data / name) for name in SQUAD_DEV)}
    return [sentence for context in contexts for sentence in split_sentences(context)]


def sentences(texts: Iterable[str], held_out: set[str]) -> Iterator[str]:
    """Yield each sentence of 4 to 60 words once, except those of dev sets.

    Args:
        held_out: letters of the sentences of dev sets.
    """
    seen: set[str] = set()
    for sentence in chain.from_iterable(map(split_sentences, texts)):
        is_fitting = SHORTEST <= len(sentence.split()) <= LONGEST and sentence not in seen
        if is_fitting and _letters(sentence) not in held_out:
            seen.add(sentence)
            yield sentence


def sample_paragraphs(texts: Iterable[str], held_out: set[str]) -> list[str]:
    """Return at most `NUM_PARAGRAPHS` random paragraphs of several sentences, without a sentence of a dev set."""
    smallest, largest = PARAGRAPH_WORDS
    fitting = [text for text in texts if smallest <= len(text.split()) <= largest]
    chosen = random.Random(1).sample(fitting, min(NUM_PARAGRAPHS, len(fitting)))
    return [text for text in chosen if held_out.isdisjoint(map(_letters, split_sentences(text)))]


def with_types_of_wikiann(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of WNUT-17 with WikiANN's types; names of other types become O."""
    for line in lines:
        word, tab, tag = line.partition("\t")
        prefix, _, kind = tag.partition("-")
        known = ENTITIES.get(kind.strip())
        yield f"{word}{tab}{f'{prefix}-{known}' if known else 'O'}" if tab else line


def _lines(texts: Iterable[str]) -> str:
    """Return texts, one a line; line breaks inside a text become spaces."""
    return "".join(f"{' '.join(text.split())}\n" for text in texts)


def split_questions(rows: Sequence[Mapping[str, str]]) -> tuple[list[Mapping[str, str]], list[Mapping[str, str]]]:
    """Split questions into training and held-out questions; copies of held-out questions are removed from training."""
    held_out = [row for number, row in enumerate(rows) if number % TREC_DEV_INTERVAL == 0]
    known = {row["text"] for row in held_out}
    return [row for row in rows if row["text"] not in known], held_out


def merge(files: Iterable[Mapping[str, Any]]) -> list[Titled]:
    """Return (title, paragraph) of SQuAD files, with each question id once."""
    found: dict[tuple[str, str], Paragraph] = {}
    seen: set[str] = set()
    for file in files:
        for article in file["data"]:
            for paragraph in article["paragraphs"]:
                new = [item for item in paragraph["qas"] if item["id"] not in seen]
                seen.update(item["id"] for item in new)
                if new:
                    title, context = article.get("title", ""), paragraph["context"]
                    merged = found.setdefault((title, context), {"context": context, "qas": []})
                    merged["qas"] += [_question(item) for item in new]
    return [(title, paragraph) for (title, _), paragraph in found.items()]


def _question(item: Mapping[str, Any]) -> dict[str, Any]:
    question = {key: item[key] for key in ("id", "question", "answers")}
    return question if item["answers"] else question | {"is_impossible": True}


def answerable(paragraphs: Iterable[Titled]) -> list[Titled]:
    """Remove questions without an answer, and paragraphs without questions."""
    found = [(title, p | {"qas": [item for item in p["qas"] if item["answers"]]}) for title, p in paragraphs]
    return [(title, paragraph) for title, paragraph in found if paragraph["qas"]]


def with_unanswerable(paragraphs: Sequence[Titled], rng: random.Random) -> list[Titled]:
    """Add unanswerable questions to paragraphs that have too few (`UNANSWERABLE`).

    They ask about other paragraphs of the same article, and their answers do not occur in this one. Of eight random
    paragraphs, those with the most words in common come first, as questions on another subject are too easy to reject.
    """
    by_title: dict[str, list[Paragraph]] = {}
    for title, paragraph in paragraphs:
        by_title.setdefault(title, []).append(paragraph)
    made: list[Titled] = []
    for title, paragraph in paragraphs:
        own, words = paragraph["qas"], _words(paragraph["context"])
        others = [other for other in by_title[title] if other is not paragraph]
        near = sorted(rng.sample(others, min(8, len(others))), key=lambda other: -len(words & _words(other["context"])))
        candidates = [
            _unanswerable(f"{item['id']}{ELSEWHERE}{len(made)}", item["question"])
            for other in near
            for item in other["qas"]
            if item["answers"]
            and not any(answer["text"].lower() in paragraph["context"].lower() for answer in item["answers"])
        ]
        num_answerable = sum(bool(item["answers"]) for item in own)
        wanted = max(0, round(UNANSWERABLE * num_answerable + rng.random() - 0.5) - (len(own) - num_answerable))
        made.append((title, {"context": paragraph["context"], "qas": own + candidates[:wanted]}))
    return made


def with_changed(paragraphs: Sequence[Titled], rng: random.Random) -> list[Titled]:
    """Add changed questions, and questions on other articles, which are unanswerable, and drop some that are easy.

    Args:
        paragraphs: the result of `with_unanswerable`.
    """
    articles = {title: number for number, (title, _) in reversed(list(enumerate(paragraphs)))}
    ordered = sorted(paragraphs, key=lambda titled: articles[titled[0]])
    everything = [(title, item) for title, paragraph in ordered for item in paragraph["qas"] if item["answers"]]
    made: list[Titled] = []
    num_foreign = 0
    for title, paragraph in ordered:
        context, found = paragraph["context"], []
        for item in paragraph["qas"]:
            found.append(item)
            if item["answers"] and rng.random() < CHANGED:
                answers = [answer["text"] for answer in item["answers"]]
                if question := changed_question(item["question"], context, answers, rng):
                    found.append(_unanswerable(f"{item['id']}-changed", question))
        if rng.random() < FOREIGN:
            other, item = rng.choice(everything)
            if other != title and not any(answer["text"].lower() in context.lower() for answer in item["answers"]):
                found.append(_unanswerable(f"{item['id']}-other{num_foreign}", item["question"]))
                num_foreign += 1
        kept = [item for item in found if ELSEWHERE not in item["id"] or rng.random() < KEPT]
        made.append((title, {"context": context, "qas": kept}))
    return made


def _unanswerable(number: str, question: str) -> dict[str, Any]:
    return {"id": number, "question": question, "answers": [], "is_impossible": True}


def cloze_questions(data: Path) -> Iterator[Titled]:
    """Yield (file name, paragraph) with one question about each suitable paragraph of Wikipedia.

    Paragraphs with a sentence of SQuAD's dev sets, which are also from Wikipedia, are skipped.
    """
    held_out = {_letters(sentence) for sentence in _sentences_of_squad_dev(data)}
    rng = random.Random(0)
    for name in CLOZE_FILES:
        for paragraph in _text(data / f"pretrain/{name}.txt.xz").split("\n"):
            found = cloze_question(paragraph, rng)
            if found and held_out.isdisjoint(map(_letters, split_sentences(paragraph))):
                context, question = found
                yield name, {"context": context, "qas": [question | {"id": str(rng.getrandbits(64))}]}


def _letters(text: str) -> str:
    """Remove case, spaces and punctuation, which differ between copies of a text."""
    return "".join(re.findall(r"\w", text.lower()))


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w{4,}", text.lower()))


def squad_text(paragraphs: Iterable[Titled]) -> str:
    """Return titled paragraphs in SQuAD's format."""
    articles: dict[str, list[Paragraph]] = {}
    for title, paragraph in paragraphs:
        articles.setdefault(title, []).append(paragraph)
    data = [{"title": title, "paragraphs": found} for title, found in articles.items()]
    return json.dumps({"version": "1", "data": data}, ensure_ascii=False) + "\n"


def read_table(path: Path, *columns: str) -> list[dict[str, str]]:
    """Read the rows of a TSV file, which must have these columns."""
    rows = [row for _, row in read_rows(_existing(path))]
    if rows and (missing := [name for name in columns if name not in rows[0]]):
        raise ValueError(f"`{path}`: no column `{missing[0]}` (columns: {', '.join(rows[0])})")
    return rows


def squad_file(path: Path) -> Mapping[str, Any]:
    """Read a SQuAD file."""
    return parse_json(_text(path), f"`{path}`")


def json_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as JSON lines."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _text(path: Path) -> str:
    return "".join(f"{line}\n" for line in read_lines(_existing(path)))


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise ValueError(f"missing data file: `{path}`; docs/results.md lists the files of the data folder")
    return path


if __name__ == "__main__":
    main()
