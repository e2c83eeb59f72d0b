"""What of the data has to be made anew before the line can read it; everything else it reads as it lies.

python -m mini.data DATA OUT

wiki-rest.txt, wiki-dev.txt     the last Wikipedia file in two: to pretrain on, and its last documents to score on
trec-6/{train,dev}.jsonl        TREC-6 has no dev set: every eleventh question of train, of which no copy stays there
sst-2/{train,dev,test}.jsonl    with labels in words
ag-news/test.jsonl              title and description as one text, as in a third of train
squad-v1.json                   both fragments of SQuAD's training sets and SQuADShifts; no question twice
squad-v2.json                   the same, with questions that their paragraph does not answer: SQuAD's, and made-up ones
cloze.json                      questions that Wikipedia asks of itself, as SQuAD has them; none of its dev sets' text
pairs.jsonl                     texts that belong together, for contrastive training
"""

from __future__ import annotations

import json
import random
import re
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import tyro

from mini.cloze import questions
from tasks.files import atomic_write
from training.command import command, parse
from training.data.squad import read_spans
from training.data.tables import read_rows
from training.text.documents import parse_json, read_lines
from training.text.sentences import split_sentences

DEV_DOCUMENTS = 60
"""Documents of Wikipedia that are not trained on."""
SENTIMENTS = {"0": "negative", "1": "positive"}
"""In the order of the numbers that stand for them, so that they are the network's numbers, too."""
TREC_DEV = 11
"""Every so many questions of TREC-6 are held out."""
UNANSWERABLE = 0.5
"""Unanswerable questions for each answerable one; dev has 1.02, official training data 0.5."""
SQUAD = ("squad/train-v1.1-part.json.xz", "squad/train-v2.0-part.json.xz")
SQUAD_DEV = ("squad/dev-v1.1-part.json.xz", "squad/dev-v2.0-part.json.xz")
SHIFTS = tuple(f"squadshifts/{name}_v1.0.json.xz" for name in ("new_wiki", "reddit", "amazon_reviews"))

CLOZE_FILES = tuple(f"wiki-{number:02}" for number in range(6))
PAIR_FILES = ("wiki-01", "wiki-04")
STS_DEV = "glue/STS-B/dev.tsv.xz"
NUM_PARAGRAPHS, PAIR_REPEATS = 28_000, 5
DROPPED = 0.3
"""Share of the words that are left out of a sentence."""

Paragraph = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class DataArguments:
    """Make what `make models` reads."""

    data: Annotated[Path, tyro.conf.Positional]
    """Folder with glue/, squad/, pretrain/ ..."""
    out: Annotated[Path, tyro.conf.Positional]
    """Folder to write."""


@command
def main() -> None:
    """Command line."""
    arguments = parse(DataArguments, "mini.data", __doc__)
    for name, content in build(arguments.data):
        atomic_write(arguments.out / name, content.encode())
        print(f"{arguments.out / name}: {len(content):,} characters", flush=True)


def build(data: Path) -> Iterator[tuple[str, str]]:
    """The files, one after the other: name and text."""
    rest, dev = split_documents(_text(data / "pretrain/wiki-06.txt.xz"))
    yield "wiki-rest.txt", rest
    yield "wiki-dev.txt", dev
    train, held_out = split_questions(read_table(data / "topic/trec-6/train.tsv.xz", "text", "label"))
    yield "trec-6/train.jsonl", _json_lines(train)
    yield "trec-6/dev.jsonl", _json_lines(held_out)
    for split in ("train", "dev", "test"):
        rows = read_table(data / f"glue/SST-2/{split}.tsv.xz", "sentence", "label")
        yield (
            f"sst-2/{split}.jsonl",
            _json_lines({"text": x["sentence"], "label": _sentiment(x["label"])} for x in rows),
        )
    news = read_table(data / "topic/ag_news-subset/test.tsv.xz", "title", "text", "label")
    yield "ag-news/test.jsonl", _json_lines({"text": f"{x['title']} {x['text']}", "label": x["label"]} for x in news)
    paragraphs = merge(_squad_file(data / name) for name in (*SQUAD, *SHIFTS))
    yield "squad-v1.json", _squad(answerable(paragraphs))
    yield "squad-v2.json", _squad(with_unanswerable(paragraphs, random.Random(0)))
    yield "cloze.json", _squad(cloze_questions(data))
    yield (
        "pairs.jsonl",
        _json_lines({"text": one, "text_pair": other} for one, other in pairs(data, answerable(paragraphs))),
    )


def _sentiment(label: str) -> str:
    """In words.

    Raises:
        ValueError: when there is none for it.
    """
    if label not in SENTIMENTS:
        raise ValueError(f"SST-2's labels are {' and '.join(SENTIMENTS)}, not `{label}`")
    return SENTIMENTS[label]


def split_documents(text: str) -> tuple[str, str]:
    """Text to train on, and the last documents of it."""
    documents = text.strip().split("\n\n")
    return "\n\n".join(documents[:-DEV_DOCUMENTS]) + "\n", "\n\n".join(documents[-DEV_DOCUMENTS:]) + "\n"


def split_questions(rows: Sequence[Mapping[str, str]]) -> tuple[list[Mapping[str, str]], list[Mapping[str, str]]]:
    """Questions to train on, and those held out; what is asked in both is left out of the former."""
    held_out = [row for number, row in enumerate(rows) if number % TREC_DEV == 0]
    asked = {row["text"] for row in held_out}
    return [row for row in rows if row["text"] not in asked], held_out


def merge(files: Iterable[Mapping[str, Any]]) -> list[tuple[str, Paragraph]]:
    """Title and paragraph of SQuAD files, each question (by its id) once."""
    found: dict[tuple[str, str], Paragraph] = {}
    seen: set[str] = set()
    for file in files:
        for article in file["data"]:
            for paragraph in article["paragraphs"]:
                new = [item for item in paragraph["qas"] if item["id"] not in seen]
                seen.update(item["id"] for item in new)
                if new:
                    title, context = article.get("title", ""), paragraph["context"]
                    place = found.setdefault((title, context), {"context": context, "qas": []})
                    place["qas"] += [_question(item) for item in new]
    return [(title, paragraph) for (title, _), paragraph in found.items()]


def _question(item: Mapping[str, Any]) -> dict[str, Any]:
    question = {key: item[key] for key in ("id", "question", "answers")}
    return question if item["answers"] else question | {"is_impossible": True}


def answerable(paragraphs: Iterable[tuple[str, Paragraph]]) -> list[tuple[str, Paragraph]]:
    """With the questions that have an answer."""
    found = [(title, p | {"qas": [item for item in p["qas"] if item["answers"]]}) for title, p in paragraphs]
    return [(title, paragraph) for title, paragraph in found if paragraph["qas"]]


def with_unanswerable(paragraphs: Sequence[tuple[str, Paragraph]], rng: random.Random) -> list[tuple[str, Paragraph]]:
    """With enough questions that have no answer: beside its own, some about other paragraphs of the same article, none
    of whose answers stands in this one.

    The other paragraph is the one, out of eight drawn, that shares the most words: questions about something else
    altogether would be told apart without reading.
    """
    by_title: dict[str, list[Paragraph]] = {}
    for title, paragraph in paragraphs:
        by_title.setdefault(title, []).append(paragraph)
    made: list[tuple[str, Paragraph]] = []
    for title, paragraph in paragraphs:
        own, words = paragraph["qas"], _words(paragraph["context"])
        others = [other for other in by_title[title] if other is not paragraph]
        near = sorted(rng.sample(others, min(8, len(others))), key=lambda other: -len(words & _words(other["context"])))
        strange = [
            {"id": f"{item['id']}-elsewhere-{len(made)}", "question": item["question"], "answers": []}
            for other in near
            for item in other["qas"]
            if item["answers"]
            and not any(answer["text"].lower() in paragraph["context"].lower() for answer in item["answers"])
        ]
        num_answerable = sum(bool(item["answers"]) for item in own)
        wanted = max(0, round(UNANSWERABLE * num_answerable + rng.random() - 0.5) - (len(own) - num_answerable))
        chosen = [item | {"is_impossible": True} for item in strange[:wanted]]
        made.append((title, {"context": paragraph["context"], "qas": own + chosen}))
    return made


def pairs(data: Path, paragraphs: Sequence[tuple[str, Paragraph]]) -> Iterator[tuple[str, str]]:
    """Pairs for contrastive training, of which no text stands in STS-B dev: part of that is MRPC's.

    Args:
        paragraphs: with questions, of SQuAD.
    """
    both = ("sentence1", "sentence2")
    held_out = {_plain(row[key]) for row in read_table(data / STS_DEV, *both) for key in both}
    made = chain(
        sentence_pairs(data, random.Random(0)),
        question_pairs(paragraphs),
        *(_alike(data / f"glue/{name}/train.tsv.xz", label) for name, label in (("MRPC", "1"), ("RTE", "entailment"))),
    )
    return (pair for pair in made if held_out.isdisjoint(map(_plain, pair)))


def _alike(table: Path, label: str) -> list[tuple[str, str]]:
    """Pairs that have a label, several times."""
    rows = read_table(table, "sentence1", "sentence2", "label")
    return [(row["sentence1"], row["sentence2"]) for row in rows if row["label"] == label] * PAIR_REPEATS


def sentence_pairs(data: Path, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Of a paragraph of Wikipedia two sentences that follow each other, and one twice with other words left out."""
    texts = "".join(_text(data / f"pretrain/{name}.txt.xz") for name in PAIR_FILES).split("\n")
    for paragraph in rng.sample(texts, min(NUM_PARAGRAPHS, len(texts))):
        sentences = [item for item in split_sentences(paragraph) if 5 <= len(item.split()) <= 40]
        if len(sentences) > 1:
            number = rng.randrange(len(sentences) - 1)
            yield sentences[number], sentences[number + 1]
            yield _shortened(sentences[number], rng), _shortened(sentences[number], rng)


def question_pairs(paragraphs: Iterable[tuple[str, Paragraph]]) -> Iterator[tuple[str, str]]:
    """A question, and the sentence that answers it."""
    for _, paragraph in paragraphs:
        sentences = split_sentences(paragraph["context"])
        starts, end = [], 0
        for sentence in sentences:
            starts.append(paragraph["context"].index(sentence, end))
            end = starts[-1] + len(sentence)
        for item in paragraph["qas"]:
            number = bisect(starts, item["answers"][0]["answer_start"]) - 1
            yield item["question"], sentences[max(0, number)]


def cloze_questions(data: Path) -> Iterator[tuple[str, Paragraph]]:
    """One question about each paragraph of Wikipedia that can be asked about; the title is that of its file.

    Paragraphs that have a sentence of SQuAD's dev sets, which are of Wikipedia, too, are left out.
    """
    contexts = {paragraph["context"] for _, paragraph in merge(_squad_file(data / name) for name in SQUAD_DEV)}
    held_out = {_plain(sentence) for context in contexts for sentence in split_sentences(context)}
    rng = random.Random(0)
    for name in CLOZE_FILES:
        for paragraph in _text(data / f"pretrain/{name}.txt.xz").split("\n"):
            found = questions(paragraph, rng)
            if found and held_out.isdisjoint(_plain(sentence) for sentence in split_sentences(paragraph)):
                context, (question,) = found
                yield name, {"context": context, "qas": [question | {"id": str(rng.getrandbits(64))}]}


def _shortened(sentence: str, rng: random.Random) -> str:
    """A sentence without some of its words."""
    return " ".join(word for word in sentence.split() if rng.random() > DROPPED) or sentence


def _plain(text: str) -> str:
    """Without what differs between copies: case, spaces, punctuation."""
    return "".join(re.findall(r"\w", text.lower()))


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w{4,}", text.lower()))


def _squad(paragraphs: Iterable[tuple[str, Paragraph]]) -> str:
    articles: dict[str, list[Paragraph]] = {}
    for title, paragraph in paragraphs:
        articles.setdefault(title, []).append(paragraph)
    data = [{"title": title, "paragraphs": found} for title, found in articles.items()]
    return json.dumps({"version": "1", "data": data}, ensure_ascii=False) + "\n"


def read_table(path: Path, *columns: str) -> list[dict[str, str]]:
    """Rows of a TSV that has some columns."""
    rows = [row for _, row in read_rows(_there(path))]
    if rows and (missing := [name for name in columns if name not in rows[0]]):
        raise ValueError(f"`{path}` has no column `{missing[0]}`")
    return rows


def _squad_file(path: Path) -> Mapping[str, Any]:
    """As it is, when the reader that training uses finds nothing wrong with it."""
    text = _text(path)
    read_spans(path)
    return parse_json(text, f"`{path}`")


def _json_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _text(path: Path) -> str:
    return "".join(f"{line}\n" for line in read_lines(_there(path)))


def _there(path: Path) -> Path:
    if not path.is_file():
        raise ValueError(f'no `{path}`; the data folder is that of docs/results.md, "Data"')
    return path


if __name__ == "__main__":
    main()
