"""Data of the shipped models: held-out splits, merged and unanswerable questions, and texts for distillation."""

import json
import lzma
import random
from collections import Counter

import pytest

from recipes.mini.data import (
    BOOK_FILES,
    CLOZE_FILES,
    SHIFTS,
    SQUAD,
    SQUAD_DEV,
    STS_DEV,
    answerable,
    main,
    merge,
    split_questions,
    with_unanswerable,
)
from tests.commands import call
from training.data.columns import Columns
from training.data.squad import read_spans
from training.data.table_examples import read_classification


def question(number, text, *answers):
    return {"id": str(number), "question": text, "answers": [{"text": a, "answer_start": 0} for a in answers]}


def squad(title, *paragraphs):
    return {"data": [{"title": title, "paragraphs": [{"context": c, "qas": qas} for c, qas in paragraphs]}]}


def test_questions_of_several_files_are_merged():
    """Questions of several files are grouped by paragraph, without duplicates; `answerable` removes those without
    answers."""
    one = squad("a", ("red house", [question(1, "colour?", "red")]))
    two = squad("a", ("red house", [question(1, "colour?", "red"), question(2, "what?", "house"), question(3, "who?")]))

    merged = merge([one, two, squad("b", ("blue house", [question(4, "who?")]))])
    ((title, paragraph),) = answerable(merged)

    assert [[item["id"] for item in found["qas"]] for _, found in merged] == [["1", "2", "3"], ["4"]]
    assert merged[0][1]["qas"][2]["is_impossible"]
    assert (title, [item["id"] for item in paragraph["qas"]]) == ("a", ["1", "2"])


def test_unanswerable_questions_come_from_other_paragraphs():
    """Added questions are from the same article, have no answer here, and are half as many as the answerable ones."""
    paragraphs = merge(
        [
            squad(
                title,
                *(
                    (
                        f"place {n} of {title}",
                        [question(f"{title}{n}{k}", f"{title}, {n}, {k}?", f"place {n}") for k in range(4)],
                    )
                    for n in range(5)
                ),
            )
            for title in "ab"
        ]
    )

    made = with_unanswerable(paragraphs, random.Random(0))

    for title, paragraph in made:
        added = [item for item in paragraph["qas"] if not item["answers"]]
        assert len(added) == pytest.approx(2, abs=1)
        for item in added:
            assert item["question"][0] == title
            assert item["question"][3] != paragraph["context"][6]
    ids = [item["id"] for _, paragraph in made for item in paragraph["qas"]]
    assert len(set(ids)) == len(ids)


def test_unfit_questions_are_not_added():
    """No question is added to a paragraph that has enough, and none without an answer, or with one that occurs here."""
    questions = [question(1, "colour?", "red"), question(2, "who?"), question(3, "when?")]
    file = squad("a", ("a red house", questions), ("a blue house", [question(4, "why?")]))
    both = squad("a", ("a red house", [question(1, "colour?", "red")]), ("red too", [question(2, "which?", "red")]))

    made = [with_unanswerable(merge([each]), random.Random(0)) for each in (file, both)]

    found = [[[item["id"] for item in paragraph["qas"]] for _, paragraph in paragraphs] for paragraphs in made]
    assert found == [[["1", "2", "3"], ["4"]], [["1"], ["2"]]]


def test_held_out_questions_are_not_trained_on():
    """Held-out questions and their copies are not in the training data."""
    rows = [{"text": str(number % 12), "label": "A"} for number in range(24)]
    train, held_out = split_questions(rows)

    assert [row["text"] for row in held_out] == ["0", "11", "10"]
    assert {row["text"] for row in train} == {str(number) for number in range(1, 10)}
    assert len(train) == 18


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(path, "wt", encoding="utf-8") as file:
        file.write(text)


def test_files_can_be_read_by_training(tmp_path, monkeypatch, capfd):
    """The readers of training accept every file that is made from a small folder of data."""
    data, out = tmp_path / "data", tmp_path / "out"
    write(data / "pretrain/wiki-06.txt.xz", "\n\n".join(f"document {n}." for n in range(80)) + "\n")
    write(data / "topic/trec-6/train.tsv.xz", "label\ttext\n" + "".join(f'LOC\tWhere is "{n}?\n' for n in range(22)))
    for split in ("train", "dev", "test"):
        write(data / f"glue/SST-2/{split}.tsv.xz", f'sentence\tlabel\na "fine {split}\t1\ndull\t0\n')
    write(data / "topic/ag_news-subset/test.tsv.xz", 'label\ttitle\ttext\nWorld\tA "title\tA text\n')
    paragraph = "The first sentence of this text. The second sentence of this text."
    river = "She saw the river Thames. They saw it. The Thames is a long and winding river."
    known = "Here is a sentence that SQuAD has. It asks what Anna saw in Rome."
    monkeypatch.setattr("recipes.mini.data.PARAGRAPH_WORDS", (8, 20))
    for name in (*BOOK_FILES, *CLOZE_FILES):
        text = f"{paragraph}\nOne sentence alone.\nOne of STS-B dev. It has another after it.\n\n{river}\n{known}\n"
        write(data / f"pretrain/{name}.txt.xz", text)
    write(data / "ner/wnut17/train.conll.xz", "Ada\tB-person\nuses\tO\nGmail\tB-product\n\nRome\tB-location\n")
    write(data / STS_DEV, "sentence1\tsentence2\tscore\none of sts-b dev\tanother\t3\n")
    for name in (*SQUAD, *SHIFTS):
        write(data / name, json.dumps(squad(name, ("the red house", [question(name, "which?", "red")]))))
    for name in SQUAD_DEV:
        write(
            data / name,
            json.dumps(squad(name, (known.replace("Here is", "Here is,"), [question(name, "who?", "Here")]))),
        )

    result = call(main, [str(data), str(out)], monkeypatch, capfd)

    assert result.returncode == 0, result.stderr
    assert len((out / "wiki-rest.txt").read_text().split("\n\n")) == 20
    assert (out / "wiki-dev.txt").read_text().startswith("document 20.\n\n")
    texts = [e.text for name in ("train", "dev") for e in read_classification(out / f"trec-6/{name}.jsonl", Columns())]
    assert sorted(texts) == sorted(f'Where is "{n}?' for n in range(22))
    sentiments = [(e.text, e.label) for e in read_classification(out / "sst-2/dev.jsonl", Columns())]
    assert sentiments == [('a "fine dev', "positive"), ("dull", "negative")]
    assert [e.text for e in read_classification(out / "ag-news/test.jsonl", Columns())] == ['A "title A text']
    assert len(read_spans(out / "squad-v1.json")) == 5
    cloze = read_spans(out / "cloze.json")
    assert Counter(e.context for e in cloze) == {paragraph: len(CLOZE_FILES), river: len(CLOZE_FILES)}
    assert all(e.answers[0] in e.context for e in cloze)
    sentences = (out / "sentences-part.txt").read_text().splitlines()
    assert {"The first sentence of this text.", "It has another after it."} <= {*sentences}
    assert not {"One of STS-B dev.", "They saw it.", "Here is a sentence that SQuAD has."} & {*sentences}
    assert len(sentences) == len({*sentences})
    assert {*(out / "paragraphs.txt").read_text().splitlines()} == {paragraph, river}
    questions = [json.loads(line) for line in (out / "questions.jsonl").read_text().splitlines()]
    assert questions == [{"text": "which?", "text_pair": "the red house"}] * 5
    assert (out / "names/wnut17.conll").read_text() == "Ada\tB-PER\nuses\tO\nGmail\tO\n\nRome\tB-LOC\n"
    assert len(read_spans(out / "squad-changed.json")) >= 5


def test_missing_and_cut_data_are_named(tmp_path, monkeypatch, capfd):
    """A missing file and a truncated one are named in one line."""
    text = tmp_path / "pretrain/wiki-06.txt.xz"
    missing = call(main, [str(tmp_path), str(tmp_path / "out")], monkeypatch, capfd)
    write(text, "\n\n".join(f"document {n}." for n in range(8000)))
    text.write_bytes(text.read_bytes()[:-100])
    cut = call(main, [str(tmp_path), str(tmp_path / "out")], monkeypatch, capfd)

    assert (missing.returncode, cut.returncode) == (1, 1)
    for result in (missing, cut):
        assert [str(text) in line for line in result.stderr.splitlines()] == [True]
