"""Tests of reading labelled data, of the optimizer's rules, and of baselines."""

import codecs
import itertools
import json
import lzma
import re

import numpy as np
import pyarrow.parquet
import pytest

from tasks import create_task
from tasks.classification import ClassificationExample
from tasks.masked_lm import MaskedLM, MaskedLMSettings
from tasks.multiple_choice import MultipleChoiceExample
from tasks.regression import RegressionExample, RegressionSettings
from tasks.spans import SpanExample
from tasks.tagging import TaggingExample
from tasks.text.tokenizer import Tokenizer
from training.checkpoint.reader import create_model
from training.data.cloze import cloze_examples, read_cloze
from training.data.columns import Columns, existing_columns
from training.data.examples import encode_examples
from training.data.squad import read_questions, read_spans
from training.data.table_examples import (
    read_classification,
    read_multiple_choice,
    read_regression,
    read_text_pairs,
)
from training.data.tagging import read_tagging
from training.loop.optimizer import create_optimizer
from training.model.config import EncoderConfig
from training.objectives.baselines import (
    first_words,
    majority_choice,
    majority_label,
    majority_tag,
    mean_label,
    no_answer,
)
from training.objectives.labelled import read_examples
from training.objectives.registry import OBJECTIVES, best_baseline
from training.text.documents import read_documents

EXPECTED = [ClassificationExample('say "hi', None, "0"), ClassificationExample("a, b", None, "1")]


def test_json_files_can_hold_json_lines(tmp_path):
    """Every task reads JSON lines from a .json file, and SQuAD's JSON on one line or several; lists are refused."""
    path, answers = tmp_path / "a.json", {"text": ["here"], "answer_start": [0]}
    rows = {
        "classification": {"text": "x", "label": "1"},
        "tagging": {"tokens": ["x"], "tags": ["O"]},
        "spans": {"id": "q7", "question": "Where?", "context": "here it is", "answers": answers},
    }
    for task, row in rows.items():
        path.write_text(f"\n{json.dumps(row)}\n{json.dumps(row)}\n")
        assert len(read_examples(task, [path], columns=Columns(), tokenizer=None)) == 2
    with pytest.raises(ValueError, match=r"a\.json` is a table, but a masked-lm"):
        read_examples("masked-lm", [path], columns=Columns(), tokenizer=None)
    for indent in (None, 1):
        path.write_text(json.dumps(squad(), indent=indent))
        assert len(read_spans(path)) == 1
    with pytest.raises(ValueError, match=r"a\.json` is not a table, so it has no column `w`"):
        read_examples("spans", [path], columns=Columns(context="w"), tokenizer=None)
    path.write_text('[{"text": "x", "label": 1}]')
    with pytest.raises(ValueError, match=r"a.json` does not hold JSON lines, .* jq -c '.\[\]'"):
        read_classification(path, Columns())


def test_tables_of_every_kind_give_the_same_examples(tmp_path):
    """All formats give the same examples, with quotes, numeric labels, compression and blanks around labels."""
    (tmp_path / "a.tsv").write_text('sentence\tlabel\nsay "hi\t0\na, b\t1\n')
    (tmp_path / "a.csv").write_text('label,sentence\n 0 ,"say ""hi"\n1,"a, b"\n')
    for name in ("a.jsonl", "a.ndjson", "A.JSONL"):
        (tmp_path / name).write_text('{"sentence": "say \\"hi", "label": 0}\n{"sentence": "a, b", "label": 1}\n')
    with lzma.open(tmp_path / "b.tsv.xz", "wt") as file:
        file.write('sentence\tlabel\nsay "hi\t0\na, b\t1\n')

    rows = [{"sentence": 'say "hi', "label": 0}, {"sentence": "a, b", "label": 1}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")

    for path in sorted(tmp_path.iterdir()):
        assert read_classification(path, Columns(text="sentence")) == EXPECTED, path


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "text\tlabel\nx\n", "line 2: 1 columns, the header has 2"),
        ("a.tsv", "text\ttext\tlabel\na\tb\tc\n", "line 1: two columns are called `text`"),
        ("a.tsv", "txt\tlabel\nx\t1\n", r"line 2: no column `text` \(columns: `txt`, `label`\)"),
        ("a.jsonl", '{"text": "x", "label": 1}\n[1]\n', "line 2: expected a JSON object"),
        ("a.jsonl", '{"text": "x", "label": {"a": 1}}\n', "line 1: `label` must be a string or a number"),
        ("a.csv", 'text,label\na,1\n"x\ny,1\nz,0\n', r"line 3: broken CSV \(unexpected end of data\)"),
        ("a.tsv", "text\tlabel\nthe\0cat\t1\n", "line 2: a NUL byte; the file is damaged, or UTF-16"),
        ("a.csv", "text;label\nx;1\n", r"line 1: the columns are separated by semicolons, not by commas; save"),
        ("a.xls", "x", "unknown format: "),
        (".", "", "is a directory; give its files"),
    ],
)
def test_malformed_tables_are_named(name, content, message, tmp_path):
    """The error names the file, the line and the column."""
    if name != ".":
        (tmp_path / name).write_text(content)

    with pytest.raises(ValueError, match=message):
        read_classification(tmp_path / name, Columns())


@pytest.mark.parametrize("labels", [(1, 1.0), ("1", "0", "1.0"), ("-2", "-2.00")])
def test_one_number_is_one_label(labels, tmp_path):
    """Two spellings of one number as a label, such as 1 and 1.0, are refused."""
    rows = [json.dumps({"text": "x", "label": label}) for label in labels]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))

    def read(*names):
        return read_examples("classification", [tmp_path / name for name in names], columns=Columns(), tokenizer=None)

    message = rf"label `{labels[-1]}` is `{labels[0]}` in other rows; write it in one way"
    with pytest.raises(ValueError, match=rf"line {len(labels)}: {message}"):
        read("a.jsonl")
    (tmp_path / "a.jsonl").write_text("\n".join(rows[:-1]))
    (tmp_path / "b.jsonl").write_text(rows[-1])

    assert len(read("a.jsonl")) == len(labels) - 1
    with pytest.raises(ValueError, match=rf"b.jsonl`, line 1: {message}"):
        read("a.jsonl", "b.jsonl")


@pytest.mark.parametrize(
    ("name", "empty"),
    [*itertools.product(["a.tsv", "a.csv", "a.jsonl"], ["", "  "]), ("a.jsonl", None), ("a.jsonl", float("nan"))],
)
def test_rows_without_a_pair_are_single_texts(name, empty, tmp_path):
    """A table may have pairs and single texts: an empty cell of the pair is none."""
    rows = [("one", "two", "x"), ("three", empty, "y")]
    if name == "a.jsonl":
        lines = [json.dumps(dict(zip(("text", "text_pair", "label"), row, strict=True))) for row in rows]
    else:
        lines = [("\t" if name == "a.tsv" else ",").join(row) for row in [("text", "text_pair", "label"), *rows]]
    (tmp_path / name).write_text("\n".join(lines) + "\n")

    found = read_classification(tmp_path / name, Columns())

    assert [(example.text, example.text_pair) for example in found] == [("one", "two"), ("three", None)]
    assert [pair for _, pair in read_text_pairs(tmp_path / name, Columns())] == ["two", None]


@pytest.mark.parametrize("name", ["a.tsv", "a.csv"])
def test_answers_are_in_no_plain_table(name, tmp_path):
    """Files without lists cannot hold answers, and the message names formats that can; questions alone they hold."""
    mark = "\t" if name == "a.tsv" else ","
    (tmp_path / name).write_text(f"question{mark}context\nWhere?{mark}It is here.\n")

    with pytest.raises(ValueError, match="cannot hold lists of answers; give SQuAD's JSON, JSON lines or Parquet"):
        read_examples("spans", [tmp_path / name], columns=Columns(), tokenizer=None)
    assert [example.question for example in read_questions(tmp_path / name, Columns())] == ["Where?"]


def test_marks_and_line_ends_of_windows_change_nothing(tmp_path):
    """A byte order mark, CRLF, blank lines, long lines and columns without a name do not change the examples."""
    long = "word " * 40_000
    text = f"text\tlabel\t\t \r\na\t0\t\t\r\n\r\n{long}\t1\ty\tz\r\n\r\n"
    (tmp_path / "a.tsv").write_bytes(codecs.BOM_UTF8 + text.encode())
    (tmp_path / "a.csv").write_bytes(codecs.BOM_UTF8 + text.replace("\t", ",").encode())
    (tmp_path / "a.jsonl").write_bytes(codecs.BOM_UTF8 + b'{"text": "a", "label": 0}\r\n')

    for name, texts in (("a.csv", ["a", long]), ("a.tsv", ["a", long]), ("a.jsonl", ["a"])):
        assert [example.text for example in read_classification(tmp_path / name, Columns())] == texts


def test_columns_of_a_table_without_a_header_have_numbers(tmp_path):
    """The columns of a table without a header, such as CoLA's, are named by number."""
    (tmp_path / "a.tsv").write_text('gj04\t0\t*\tsay "hi\ngj04\t1\t\ta, b\n')

    columns = Columns(text="3", label="1", header=False)
    assert read_classification(tmp_path / "a.tsv", columns) == EXPECTED
    (tmp_path / "a.tsv").write_text("a\tb\nc\n")
    with pytest.raises(ValueError, match="line 2: 1 columns, the first line has 2"):
        read_classification(tmp_path / "a.tsv", Columns(text="0", label="1", header=False))


@pytest.mark.parametrize(
    ("content", "known", "expected"),
    [
        ("sentence\tlabel\nx\t0\n", Columns(text="sentence"), Columns(text="sentence")),
        ("sentence\tlabel\nx\t0\n", Columns(text="sentence", label="class"), Columns(text="sentence")),
        ("text\tlabel\nx\t0\n", Columns(text="sentence"), Columns()),
        ("x\t0\ny\t1\n", Columns(text="0", label="1", header=False), Columns(text="0", label="1", header=False)),
        ("text\tlabel\nx\t0\n", Columns(text="0", label="1", header=False), Columns()),
        ("", Columns(), Columns()),
    ],
)
def test_existing_columns_keep_their_known_names(content, known, expected, tmp_path):
    """Existing columns keep their known names, others get the usual names, and an existing header is detected."""
    (tmp_path / "a.tsv").write_text(content)

    assert existing_columns([tmp_path / "a.tsv"], known) == expected


PAIRS = [RegressionExample("a cat", "a dog", 2.5), RegressionExample("x", "y", 0.0)]


NONE = {"text": [], "answer_start": []}


@pytest.mark.parametrize(
    ("read", "columns", "rows", "message"),
    [
        (read_classification, Columns(text_pair="premise"), [{"text": "a", "label": 0}], "premise"),
        (read_multiple_choice, Columns(question="q"), [{"choices": ["a", "b"], "label": 0}], "q"),
        (read_spans, Columns(context="body"), [{"id": 1, "question": "a", "context": "b", "answers": NONE}], "body"),
    ],
)
def test_named_columns_must_exist(read, columns, rows, message, tmp_path):
    """A column named by flag must exist, and a column with its usual name may be absent."""
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    assert len(read(tmp_path / "a.jsonl", Columns())) == 1
    there = ", ".join(f"`{name}`" for name in rows[0])
    with pytest.raises(ValueError, match=rf"a\.jsonl`, line 1: no column `{message}` \(columns: {there}\)"):
        read(tmp_path / "a.jsonl", columns)


def test_examples_know_where_they_stand(tmp_path):
    """Examples know their line, the first line of their cell, or their question."""
    (tmp_path / "a.csv").write_text('text,label\n\n"a\nb",0\nc,1\n')
    (tmp_path / "a.json").write_text(json.dumps(squad()))

    assert read_classification(tmp_path / "a.csv", Columns()).locations == [
        f"`{tmp_path}/a.csv`, line 3",
        f"`{tmp_path}/a.csv`, line 5",
    ]
    assert read_spans(tmp_path / "a.json").locations == [f"`{tmp_path}/a.json`, question `q7`"]


def test_the_first_example_without_a_token_is_named(tmp_path, tokenizer_dir):
    """The error names the location of the first example without tokens and counts the others."""
    (tmp_path / "a.tsv").write_text("text\tlabel\nthe\t1\n\n\u200b\t1\nthe\t0\n\u200b\t0\n")
    task = create_task("regression", Tokenizer.load(tokenizer_dir), RegressionSettings())
    examples = read_regression(tmp_path / "a.tsv", Columns())

    with pytest.raises(ValueError, match=r"a\.tsv`, line 4, text: empty text; .* \(and 1 more: line 6\)"):
        encode_examples(task, examples)


CHOICES = MultipleChoiceExample(("a dog", "a cat"), "Here it is.", "It is", 1, "7")


def test_choices_are_read_from_lists_and_from_columns_of_swag(tmp_path):
    """The reader takes lists of choices and SWAG's CSV."""
    row = {"id": 7, "context": "Here it is.", "question": "It is", "choices": ["a dog", "a cat"], "label": 1}
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "a.parquet")
    header = "id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,label"
    (tmp_path / "a.csv").write_text(f"{header}\n7,1,Here it is. It is,Here it is.,It is,gold,a dog,a cat,1\n")

    (tmp_path / "pandas.csv").write_text(f"{header}\n7,1,Here it is. It is,Here it is.,It is,gold,a dog,a cat,1.0\n")

    for name in ("a.jsonl", "a.parquet", "a.csv", "pandas.csv"):
        assert read_multiple_choice(tmp_path / name, Columns()) == [CHOICES]


SENTENCES = [
    TaggingExample(("New", "York", "#", "."), ("B-LOC", "I-LOC", "O", "O")),
    TaggingExample(("\xa0", "x"), ("O", "B-PER")),
]


@pytest.mark.parametrize(
    ("read", "row", "message"),
    [
        (read_regression, {"text": "x", "label": 10**400}, "line 1: `label` must be a number: `10{59}`$"),
        (read_regression, {"text": "x", "label": True}, "must be a number: `True`"),
        (read_multiple_choice, {"choices": ["a", "b"], "label": 0.5}, "must be the number of a choice, from 0: `0.5`"),
        (read_multiple_choice, {"ending0": "a", "ending1": None, "label": 0}, "`choices` must be a list of strings"),
        (read_tagging, {"tokens": ["a"], "tags": ["O", "O"]}, "1 `tokens`, but 2 `tags`"),
    ],
)
def test_malformed_rows_are_named(read, row, message, tmp_path):
    """The error names the line, the column and the value."""
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")

    with pytest.raises(ValueError, match=message):
        read(tmp_path / "a.jsonl", Columns())


def test_a_tag_of_no_scheme_is_named(tmp_path):
    """The error names the sentence of an invalid tag, in tables and CoNLL."""
    rows = [{"tokens": ["a"], "tags": ["O"]}, {"tokens": ["b", "c"], "tags": ["B-PER", "X-PER"]}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "a.conll").write_text("a O\n\nb B-PER\nc X-PER\n")

    for name, line in (("a.jsonl", 2), ("a.conll", 3)):
        with pytest.raises(ValueError, match=rf"{name}`, line {line}: tag `X-PER`: unknown prefix `X-` \(known are"):
            read_tagging(tmp_path / name, Columns())


def test_questions_are_read_from_tables(tmp_path):
    """The reader takes SQuAD's columns from tables, and a row without answers is unanswerable."""
    rows = [
        {"id": "1", "question": "Where?", "context": "here", "answers": {"text": ["here"], "answer_start": [0]}},
        {"id": "2", "question": "Who?", "context": "here", "answers": {"text": [], "answer_start": []}},
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")

    found = read_spans(tmp_path / "a.parquet")

    renamed = [
        {"body": row["context"], "q": row["question"], **row, "context": "other", "question": ""} for row in rows
    ]
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in renamed))

    assert read_spans(tmp_path / "b.jsonl", Columns(context="body", question="q")) == found
    assert found == [SpanExample("Where?", "here", ("here",), 0, "1"), SpanExample("Who?", "here", (), -1, "2")]


def squad(**changes):
    question = {"id": "q7", "question": "Where?", "answers": [{"text": "here", "answer_start": 0}]} | changes
    return {"data": [{"paragraphs": [{"context": "here it is", "qas": [question]}]}]}


NOWHERE = [{"text": "", "answer_start": -1}]
HERE = [{"text": "here", "answer_start": 0}]


@pytest.mark.parametrize(
    ("changes", "answers", "start"),
    [
        ({"is_impossible": True, "answers": HERE}, (), -1),
        ({"is_impossible": True, "answers": None}, (), -1),
        ({"answers": []}, (), -1),
        ({"is_impossible": None, "answers": NOWHERE}, (), -1),
        ({"is_impossible": False}, ("here",), 0),
        ({"is_impossible": 0, "answers": NOWHERE + HERE}, ("here",), 0),
        ({}, ("here",), 0),
    ],
)
@pytest.mark.parametrize("kind", ["json", "jsonl", "parquet"])
def test_impossible_questions_have_no_answer(kind, changes, answers, start, tmp_path):
    """An impossible question has no answer, whatever its answers field holds, and blank answers are ignored."""
    data = squad(**changes)
    paragraph = data["data"][0]["paragraphs"][0]
    row = {**paragraph["qas"][0], "context": paragraph["context"]}
    if found := row["answers"]:
        row["answers"] = {name: [answer[name] for answer in found] for name in ("text", "answer_start")}
    elif found is not None:
        row["answers"] = {"text": [], "answer_start": []}
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), path)
    else:
        path.write_text(json.dumps(data if kind == "json" else row) + "\n")

    assert read_spans(path) == [SpanExample("Where?", "here it is", answers, start, "q7")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"data": [{}]}, "it lacks `paragraphs`"),
        ([{}], "a list, an object or a text is where SQuAD has another of them"),
        (squad(answers=["here"]), "a list, an object or a text is where SQuAD has another of them, in question"),
        (squad(question=None), "`question` must have type str: `None`, in question `{'id': 'q7'"),
        (squad(is_impossible="no"), "`is_impossible` must be true or false: `no`, in question"),
        (squad(is_impossible=False, answers=[]), "`is_impossible` is false, but there is no answer, in question"),
    ],
)
def test_malformed_squad_is_named(content, message, tmp_path):
    """The error names the file, the key and the question."""
    (tmp_path / "a.json").write_text(json.dumps(content))

    with pytest.raises(ValueError, match=rf"`{tmp_path}/a.json`.* is not in SQuAD's format: {re.escape(message)}"):
        read_spans(tmp_path / "a.json")


def test_cloze_hides_tokens_that_stand_alone(text_file, tokenizer_dir):
    """Cloze examples are reproducible, and their hidden tokens complete the text."""
    tokenizer = Tokenizer.load(tokenizer_dir)
    task = MaskedLM(tokenizer, MaskedLMSettings(max_seq_length=128))
    examples = read_cloze(text_file, tokenizer, max_tokens=40, max_examples=30)

    assert examples == read_cloze(text_file, tokenizer, max_tokens=40, max_examples=30)
    assert len(examples) == 30
    assert len(list(cloze_examples(["the cat sees a dog", "the [MASK] sees a dog"], tokenizer))) == 1
    documents = [tokenizer.tokenize([" ".join(document)])[0].ids for document in read_documents(text_file)]
    texts = [" ".join(map(str, ids)) for ids in documents]
    for example, (features,) in zip(examples, task.encode(examples), strict=True):
        ids = features.input_ids.copy()
        masks = ids == tokenizer.mask_id
        assert masks.sum() == len(example.tokens) == max(1, round(0.15 * (len(ids) - 2)))
        ids[masks] = [tokenizer.token_id(token) for token in example.tokens]
        assert any(" ".join(map(str, ids[1:-1])) in text for text in texts)


def test_passages_are_no_longer_than_the_model_reads(text_file, tokenizer_dir):
    """Cloze passages fit the model's maximum length, so no [MASK] is truncated."""
    tokenizer = Tokenizer.load(tokenizer_dir)
    task = MaskedLM(tokenizer, MaskedLMSettings(max_seq_length=32))

    examples = read_examples("masked-lm", [text_file], columns=Columns(), tokenizer=tokenizer, max_passage_tokens=30)

    assert len(task.encode(examples, truncate=False)) == len(examples) > 50


def test_layer_norms_and_biases_do_not_decay():
    """All weights except layer norms and biases decay, and every parameter is in one group."""
    model = create_model(
        "masked-lm", EncoderConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    )
    optimizer = create_optimizer(model, weight_decay=0.01, betas=(0.9, 0.999))

    decayed, others = (
        {name for name, value in model.named_parameters() if any(value is item for item in group["params"])}
        for group in optimizer.param_groups
    )

    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0.0]
    assert decayed | others == {name for name, _ in model.named_parameters()}
    assert all("norm" in name or name.endswith("bias") for name in others)
    assert "bert.embeddings.word.weight" in decayed
    assert not any("norm" in name for name in decayed)


def test_baselines_equal_scores_computed_by_hand():
    """The baselines equal scores computed by hand, and the better one is chosen."""
    choices = [MultipleChoiceExample(("a", "b"), label=label) for label in (1, 1, 0)]
    assert majority_choice(choices, choices)["accuracy"] == pytest.approx(2 / 3)
    errors = np.abs(np.subtract([pair.label for pair in PAIRS], np.mean([pair.label for pair in PAIRS])))
    assert mean_label(PAIRS, PAIRS) == {"pearson": 0.0, "spearman": 0.0, "mean_absolute_error": errors.mean()}
    scores = majority_tag(SENTENCES, [TaggingExample(("York", "unseen", "x"), ("B-LOC", "O", "B-PER"))])
    assert scores["f1"] == 1.0  # York's I-LOC begins an entity, too
    assert scores["accuracy"] == pytest.approx(2 / 3)

    example = lambda label: ClassificationExample("x", None, label)  # noqa: E731
    train, dev = [example("a"), example("a"), example("b")], [example("a"), example("b")]
    assert majority_label(train, dev)["accuracy"] == 0.5

    spans = [SpanExample("q", "one two three four", ("one two",), 0)]
    assert first_words(spans, spans) == {"exact_match": 1.0, "f1": 1.0}
    unanswerable = [SpanExample("q", "one two three four")] * 3
    assert first_words(unanswerable, unanswerable)["f1"] == no_answer(spans, unanswerable)["f1"] == 1.0
    assert best_baseline("spans", spans, [*spans, *unanswerable], None) == (
        "always no answer",
        no_answer(spans, [*spans, *unanswerable]),
    )
    assert best_baseline("spans", spans, spans, None)[0] == "first words"


def test_first_characters_are_the_baseline_without_spaces():
    """The first-words baseline counts characters in text without spaces, and a foreign word as one."""
    train = [SpanExample("q", "x", (answer,), 0) for answer in ("北京", "在1949年", "三国演义")]
    dev = [SpanExample("q", "《红楼梦》是小说。", ("红楼",), 1), SpanExample("q", "BERT是模型。", ("BERT",), 0)]

    assert first_words(train, dev) == {
        "exact_match (characters)": 0.0,
        "f1 (characters)": pytest.approx((4 / 5 + 2 / 4) / 2),
    }
    assert no_answer(train, dev) == {"exact_match (characters)": 0.0, "f1 (characters)": 0.0}


FILES = {
    "tagging": [("a.conll", "-DOCSTART- -X- O\n\nthe DT O\ncat NN B-ANIMAL\n"), ("a.txt", "the O\n")],
    "spans": [("a.json", json.dumps(squad()))],
    "multiple-choice": [
        ("a.jsonl", '{"choices": ["a", "b"], "label": 0}\n'),
        ("a.csv", "ending0,ending1,label\na,b,0\n"),
    ],
    "classification": [("a.tsv", "text\tlabel\na text\tyes\n"), ("a.csv", "label,text\nyes,a text\n")],
}


@pytest.mark.parametrize("task", OBJECTIVES)
def test_files_of_other_tasks_are_recognised(task, tmp_path):
    """The error names the task that reads a file of another kind."""
    for other, files in FILES.items():
        for name, content in files:
            path = tmp_path / name
            path.write_text(content)
            if other == task:
                assert len(read_examples(task, [path], columns=Columns(), tokenizer=None)) == 1
            elif (other, task) != ("classification", "regression"):  # both read the same tables
                with pytest.raises(ValueError, match=f"{name}`.*; this looks like .*, which the task `{other}` reads"):
                    read_examples(task, [path], columns=Columns(), tokenizer=None)
