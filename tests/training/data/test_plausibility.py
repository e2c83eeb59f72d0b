"""Tests of data that parse into another meaning: they are read as meant, refused, or doubted in one line."""

import csv
import io
import json
import re
from decimal import Decimal

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.classification import ClassificationExample
from tasks.multiple_choice import MultipleChoiceExample
from tasks.regression import RegressionExample
from tasks.spans import SpanExample
from tasks.tagging import TaggingExample
from training.data.columns import Columns
from training.data.examples import Examples, hold_out, labels_of
from training.data.pairs import read_pairs
from training.data.plausibility import doubts, report_doubts
from training.data.squad import read_spans
from training.data.table_examples import read_classification, read_multiple_choice, read_regression
from training.data.tables import read_rows
from training.data.tagging import read_tagging
from training.objectives.base import all_label_names
from training.objectives.labelled import read_examples
from training.objectives.registry import OBJECTIVES


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# Rows that cannot be used


@pytest.mark.parametrize(
    ("name", "content", "read", "message"),
    [
        (
            "a.tsv",
            "text\tlabel\n" + "\tx\n" * 9 + "a\n" + "b\t\n",
            read_classification,
            r"line 2: `text` is empty \(and 8 more: lines 3, 4, 5, 6, 7, …\); `.*a\.tsv`, line 11: 1 columns, the "
            r"header has 2; `.*a\.tsv`, line 12: `label` is empty$",
        ),
        (
            "a.jsonl",
            '{"text": "a", "label": 1}\n{"text"\n[1]\n{"text": "a", "label": "x"}\n{"text": "a", "label": "y"}\n',
            read_regression,
            r"line 2: broken JSON .*; .*line 3: expected a JSON object; .*line 4: `label` must be a number: `x` "
            r"\(and 1 more: line 5\)$",
        ),
        (
            "a.jsonl",
            '{"text": "a", "label": 1}\n{"text": "", "label": 1}\n',
            read_regression,
            "line 2: `text` is empty; --skip-empty leaves out rows without text or label",
        ),
    ],
)
def test_all_bad_rows_are_in_one_message(name, content, read, message, tmp_path):
    """The message has the first row of each problem, and number and lines of the others."""
    (tmp_path / name).write_text(content)

    with pytest.raises(ValueError, match=message):
        read(tmp_path / name, Columns())


MARKED = [("a", "1"), ("b", "-1"), ("", "1"), ("c", ""), ("d", "0")]


@pytest.mark.parametrize("read", [read_classification, read_regression, read_multiple_choice])
@pytest.mark.parametrize(("flags", "kept"), [({"skip_empty": True}, "abd"), ({"no_label": ("-1",)}, "ad")])
def test_rows_without_a_label_are_left_out(read, flags, kept, tmp_path):
    """Empty rows are left out if the user says so, and those with a label that marks none; a note counts them."""
    is_choice = read is read_multiple_choice
    rows = [{"choices": [text, "x"] if text else None, "text": text, "label": label} for text, label in MARKED]
    if is_choice and "no_label" not in flags:
        rows.pop(1)  # no number of a choice
        kept = "ad"

    found = read(write(tmp_path / "a.jsonl", rows), Columns(**flags))

    assert "".join(example.choices[0] if is_choice else example.text for example in found) == kept
    assert f"{len(rows) - len(kept)} of {len(rows)} rows are left out: " in found.notes[0]


def test_empty_lists_are_empty_rows(tmp_path):
    """A sentence without words is left out if the user says so."""
    rows = [{"tokens": ["a"], "tags": ["O"]}, {"tokens": [], "tags": []}]
    path = write(tmp_path / "a.jsonl", rows)

    assert len(read_tagging(path, Columns(skip_empty=True))) == 1
    with pytest.raises(ValueError, match="line 2: `tokens` is an empty list; --skip-empty leaves out"):
        read_tagging(path, Columns())


@pytest.mark.parametrize("cell", ["['a', 'b']", '["a"]', "['a' 'b']"])
def test_lists_of_texts_in_one_cell_are_refused(cell, tmp_path):
    """Lists of words, choices or negatives written as text are refused."""
    row = {"tokens": cell, "tags": cell, "choices": cell, "text": "a", "text_pair": "b", "negative": cell, "label": 0}
    path = write(tmp_path / "a.jsonl", [row])

    for read in (read_tagging, read_multiple_choice, lambda path, columns: read_pairs([path], columns)):
        with pytest.raises(ValueError, match=r"line 1: `.*` is a list written as text; write lists in JSON lines"):
            read(path, Columns())


# Labels


@pytest.mark.parametrize(
    "label",
    [
        *("['toxic', 'insult']", '["a"]', "{'a', 'b'}", "('a',)", "{'a': 1}", "array(['a'], dtype=object)"),
        *("['a' 'b']", "[3]", "[]", "[a, b]", "[0.5, 0.5]", "(1, 2)"),
    ],
)
@pytest.mark.parametrize("separator", ["", ","])
def test_lists_in_one_cell_are_refused(label, separator, tmp_path):
    """A list written as text is no class name, also beside a separator; the message names the ways to write several."""
    path = write(tmp_path / "a.jsonl", [{"text": "x", "label": label}])

    with pytest.raises(ValueError, match=r"line 1: `label` is a list written as text \(write lists in JSON lines, "):
        read_classification(path, Columns(label_separator=separator))


@pytest.mark.parametrize("label", ["[CLS]", "(other)", "a, b", "{name}", "f(x)", "[a]", "x [1, 2]"])
def test_names_in_brackets_are_labels(label, tmp_path):
    """Brackets around a name do not make it a list."""
    path = write(tmp_path / "a.jsonl", [{"text": "x", "label": label}])

    assert read_classification(path, Columns())[0].label == label


HOT = [[0, 1, 0], [1, 0, 1], [0, 0, 0]]


@pytest.mark.parametrize(
    "form",
    [
        list,
        str,
        lambda row: list(map(float, row)),
        lambda row: list(map(bool, row)),
        lambda row: list(map(str, row)),
        lambda row: str(np.array(row)),
        lambda row: str(np.array(row, dtype=float)),
        lambda row: str(np.array(row, dtype=bool)),
        lambda row: list(map(Decimal, row)),
    ],
)
def test_multi_hot_rows_are_recognised(form, tmp_path):
    """Rows of as many 0 and 1 are labels by position, as Python and numpy write them; a note says so."""
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["x"] * 3, "label": [form(row) for row in HOT]}), path)

    found = read_classification(path, Columns())

    assert [example.labels for example in found] == [tuple(map(str, np.flatnonzero(row))) for row in HOT]
    assert "3 values of 0 and 1 a row: labels `0` to `2`, by position" in found.notes[0]


@pytest.mark.parametrize("rows", [[[0, 1], [1]], [[0], [1]], [[0, 1], []], [[3, 17], [0, 1]]])
def test_lists_of_class_numbers_stay_names(rows, tmp_path):
    """Lists with other lengths or numbers hold numbers of classes."""
    path = write(tmp_path / "a.jsonl", [{"text": "x", "label": row} for row in rows])

    assert [example.labels for example in read_classification(path, Columns())] == [tuple(map(str, r)) for r in rows]


def test_odd_lists_of_numbers_are_refused(tmp_path):
    """Multi-hot rows of other lengths than the others, and probabilities, are no labels."""
    for rows, message in ((([0, 1, 0], [1, 0]), "line 1: `label` looks multi-hot, but"), (([0.2, 0.8],), "fractions")):
        path = write(tmp_path / "a.jsonl", [{"text": "x", "label": row} for row in rows])
        with pytest.raises(ValueError, match=message):
            read_classification(path, Columns())


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (list(range(12)), [str(number) for number in range(12)]),
        ([10, 9, -1], ["-1", "9", "10"]),
        (["10", "9", "x"], ["10", "9", "x"]),
        (["01", "1", "02"], ["01", "1", "02"]),
    ],
)
def test_whole_numbers_are_sorted_by_value(labels, expected, tmp_path):
    """The index of a label that is a whole number follows its value; 01 and 1 are two labels."""
    path = write(tmp_path / "a.jsonl", [{"text": "x", "label": label} for label in labels])

    found = read_examples("classification", [path], columns=Columns(), tokenizer=None)

    assert list(all_label_names(OBJECTIVES["classification"], found)) == expected


@pytest.mark.parametrize(
    "feature",
    [
        {"names": ["no", "yes"], "_type": "ClassLabel"},
        {"names": ["no", "yes"], "num_classes": 2, "id": None, "_type": "ClassLabel"},
        {"feature": {"names": ["no", "yes"], "_type": "ClassLabel"}, "length": -1, "_type": "Sequence"},
        {"feature": {"names": ["no", "yes"], "_type": "ClassLabel"}, "_type": "List"},
        [{"names": ["no", "yes"], "_type": "ClassLabel"}],
    ],
)
def test_class_names_of_parquet_are_read(feature, tmp_path):
    """Numbers of classes become the names that the library `datasets` writes beside them; -1 is none."""
    is_list = isinstance(feature, list) or "feature" in feature
    values = [[1], [0, 1]] if is_list else [1, -1]
    features = {"text": {"dtype": "string", "_type": "Value"}, "label": feature}
    table = pyarrow.Table.from_pylist([{"text": "x", "label": value} for value in values])
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), tmp_path / "a.parquet")

    found = [row["label"] for _, row in read_rows(tmp_path / "a.parquet")]

    assert found == ([["yes"], ["no", "yes"]] if is_list else ["yes", None])


def test_a_class_without_a_name_is_refused(tmp_path):
    """A number above those of the named classes is an error with its row."""
    metadata = {"huggingface": json.dumps({"info": {"features": {"label": {"names": ["a"], "_type": "ClassLabel"}}}})}
    table = pyarrow.Table.from_pylist([{"label": 1}]).replace_schema_metadata(metadata)
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")

    with pytest.raises(ValueError, match="row 1: class `1` is none of the 1 that the data name"):
        list(read_rows(tmp_path / "a.parquet"))


# Quotes

CELLS = st.text(st.sampled_from('ab"\\ ,'), min_size=1, max_size=5) | st.sampled_from(["a\nb", '"x\ny"', "a\tb", "\n"])


@given(
    rows=st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=5),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
)
def test_quoted_tsv_is_read_as_it_was_written(rows, quoting, tmp_path_factory):
    """Cells that Python's csv, and so pandas, quotes in a TSV are read without the quotes."""
    path, file = tmp_path_factory.mktemp("quoted") / "a.tsv", io.StringIO()
    csv.writer(file, delimiter="\t", quoting=quoting, lineterminator="\n").writerows([("text", "label"), *rows])
    path.write_text(file.getvalue())

    assert [tuple(row.values()) for _, row in read_rows(path)] == rows


@pytest.mark.parametrize(
    "texts",
    [['say "hi', '"a" b'], ['"whole"', "none"], ['"open', 'close"'], ['5" disk', '"a ""b"" c"'], ['"', '""']],
)
def test_quotes_of_plain_tsv_stay(texts, tmp_path):
    """Quotes are part of the text if not all cells with quotes are written as in CSV."""
    (tmp_path / "a.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t1\n" for text in texts))

    assert [row["text"] for _, row in read_rows(tmp_path / "a.tsv")] == texts


def test_backslashes_before_quotes_are_named(tmp_path):
    """A CSV that escapes quotes with a backslash is refused with the reason."""
    (tmp_path / "a.csv").write_text('text,label\n"He said \\"hi\\" to me",1\n')

    with pytest.raises(
        ValueError, match=r"line 2: broken CSV .*; write quotes inside cells twice, not with a backslash"
    ):
        list(read_rows(tmp_path / "a.csv"))


# Answers


@pytest.mark.parametrize("answers", [[("x", 0), ("cat", 4)], [("cat", 0), ("cat", 4), ("the", 0)]])
def test_the_first_answer_that_fits_is_trained(answers, tmp_path):
    """Training learns the first answer that is at its place; all answers count for scores."""
    found = {"text": [text for text, _ in answers], "answer_start": [start for _, start in answers]}
    row = {"id": "1", "question": "what?", "context": "the cat", "answers": found}

    example = read_spans(write(tmp_path / "a.jsonl", [row]))[0]

    assert (example.answers[0], example.answer_start) == ("cat", 4)
    assert sorted(example.answers) == sorted(found["text"])


@pytest.mark.parametrize(
    ("unit", "start_of"),
    [
        ("UTF-16 code units", lambda before: len(before.encode("utf-16-le")) // 2),
        ("bytes", lambda before: len(before.encode())),
        ("characters from 1", lambda before: len(before) + 1),
    ],
)
def test_units_of_offsets_are_recognised(unit, start_of):
    """The unit in which answer_start would fit is named with the number of questions; no unit is guessed otherwise."""
    before = "a 😀 über 😀 "
    examples = [SpanExample("q", f"{before}cat", (answer,), start_of(before)) for answer in ("cat", "ca", "dog")]

    assert OBJECTIVES["spans"].unusable_hint(examples) == f"2 would fit if answer_start counted {unit}"


def test_questions_need_no_answers_field(tmp_path):
    """A question without `answers` has none, in tables and in SQuAD's JSON; data without any answer are doubted."""
    row = {"id": "1", "question": "what?", "context": "the cat"}
    (tmp_path / "a.json").write_text(json.dumps({"data": [{"paragraphs": [{"context": "the cat", "qas": [row]}]}]}))

    for path in (write(tmp_path / "a.jsonl", [row]), tmp_path / "a.json"):
        assert read_spans(path) == [SpanExample("what?", "the cat", id="1")]
    lines = OBJECTIVES["spans"].warnings(None, [SpanExample("what?", "the cat")] * 2)
    assert lines == ["none of the 2 questions has an answer"]


# Doubts


def texts(*labels):
    return [ClassificationExample(f"text {n}", label=label) for n, label in enumerate(labels)]


@pytest.mark.parametrize(
    ("examples", "expected"),
    [
        (texts("Yes", "yes", "no"), ["labels that differ only in case, .*: `Yes` 1, `yes` 1$"]),
        (texts("caf\u00e9", "cafe\u0301", "no"), [r"labels that differ .*: `cafe\\u0301` 1, `café` 1$"]),
        (texts("a", "a\u200b", "no"), [r"labels that differ .*: `a` 1, `a\\u200b` 1$"]),
        (texts("01", "1", "2"), ["labels that differ .*leading zeros.*: `01` 1, `1` 1$"]),
        (texts("0", "-1", "1"), ["labels that often mean none: `-1` 1; leave them out with --columns.no-label -1$"]),
        (texts("yes", "N/A", "-"), ["labels that often mean none: `N/A` 1, `-` 1; leave"]),
        (texts("-2", "-1", "0"), []),
        (texts("yes", "yes"), ["every label is `yes`, so that nothing is learnt or compared"]),
        (texts("a", "\\N"), [r"labels that often mean none: `\\N` 1"]),
        (texts("a, b", "b", "c"), [r"labels that look like several: `a, b` 1; .*--columns.label-separator ','$"]),
        (texts("1|0", "0|1"), [r"labels that look like several: `1\|0` 1, `0\|1` 1; "]),
        (texts("a, b", "c", "d; e"), []),
        (texts(' "a"', "b"), ['1 of 2 labels look quoted or escaped, such as ` "a"`']),
        (texts('"a"', "b"), ['1 of 2 labels look quoted or escaped, such as `"a"`']),
        (
            [ClassificationExample("a", label="x"), ClassificationExample("a", label="y")] * 2,
            [r"^inputs that occur with different labels: 1, the first with `x` \(place 0\) and `y` \(place 1\)$"],
        ),
        ([ClassificationExample("a", labels=("x", "y")), ClassificationExample("a", labels=())], ["inputs that occur"]),
        (
            [ClassificationExample(text, label=text) for text in ('a ""b""', "c")],
            ["1 of 2 texts look", "1 of 2 labels"],
        ),
        ([RegressionExample("a", label=3.0), RegressionExample("b", label=3.0)], ["every label is `3`"]),
        ([RegressionExample(str(n), label=float(n)) for n in (-1, 0, 5)], ["labels that often mean none: `-1` 1"]),
        ([RegressionExample(str(n), label=n / 3) for n in range(-3, 3)], []),
        ([MultipleChoiceExample(("a", "b"), str(n), label=0) for n in range(2)], ["every label is `0`"]),
        (
            [MultipleChoiceExample(("a", "b", "c"), str(n), label=1 + n % 2) for n in range(21)],
            ["the first choice, number 0, is never right; do the numbers begin at 1"],
        ),
        (
            [RegressionExample("nan", label=0.0), RegressionExample("b", label=3.0)],
            ["texts that often mean none: `nan` 1"],
        ),
        (
            [RegressionExample(f"['{n}']", label=float(n)) for n in range(3)],
            ["3 of 3 texts look like lists that a prog"],
        ),
        ([TaggingExample(("a", "-"), ("O", "-")), TaggingExample(("b",), ("o",))], ["labels that differ only in case"]),
        ([SpanExample("q", "a b", ("a",), 0), SpanExample("q", "a b", ("b",), 2)], []),
    ],
)
def test_doubts_are_one_line_each(examples, expected):
    """Each doubt is a line with the labels and their counts; plausible data give none."""
    found = doubts(Examples((f"place {n}", example) for n, example in enumerate(examples)))

    assert len(found) == len(expected)
    for line, pattern in zip(found, expected, strict=True):
        assert re.search(pattern, line)


@pytest.mark.parametrize(("second", "is_odd"), [("01", True), ("10x", False), ("0", False), ("xy", False)])
def test_files_with_other_labels_are_named(second, is_odd):
    """A file is named if it has several labels, none of which the other files have."""
    located = [
        (f"`{file}`, line {n}", label) for file, names in (("a", "xy"), ("b", second)) for n, label in enumerate(names)
    ]
    examples = Examples((place, ClassificationExample(place, label=label)) for place, label in located)

    assert any("no other file has the labels of `" in line for line in doubts(examples)) == is_odd


def test_rare_classes_are_named_in_training_data(capsys):
    """Classes with fewer than five examples are counted in training data, not in others; notes come first."""
    examples = Examples(((f"{n}", example) for n, example in enumerate(texts(*"aaaaabc"))), notes=["read oddly"])

    report_doubts("dev data", examples)
    report_doubts("training data", examples, ["and more"], are_trained_on=True)

    said = capsys.readouterr()
    assert said.out == "note: read oddly\n" * 2
    assert said.err == (
        "warning: training data: 2 of 3 labels have fewer than 5 examples: `b` 1, `c` 1\n"
        "warning: training data: and more\n"
    )


@pytest.mark.parametrize(
    ("task", "row", "unused"),
    [
        ("classification", {"text": "a", "sentence2": "b", "label": "x", "id": 1}, "sentence2"),
        ("regression", {"text": "a", "score": 2, "label": 1}, "score"),
        ("multiple-choice", {"choices": ["a", "b"], "label": 0, "answer": 1}, "answer"),
        ("tagging", {"tokens": ["a"], "tags": ["O"], "ner": ["O"]}, "ner"),
        ("spans", {"id": "1", "question": "a", "context": "b", "answer": "b"}, "answer"),
    ],
)
def test_unused_columns_are_noted(task, row, unused, tmp_path):
    """A note names the columns that a task does not read, except ids."""
    path = write(tmp_path / "a.jsonl", [row])

    assert read_examples(task, [path], columns=Columns(), tokenizer=None).notes == [
        f"unused columns of `{path}`: `{unused}`"
    ]


def test_two_columns_of_tags_are_noted(tmp_path):
    """In CoNLL with two columns of tags, a note names the one that is read and the flag for the other."""
    (tmp_path / "a.conll").write_text("1\tAnn\tB-PER\tO\n2\tin\tO\tO\n3\tRome\tB-LOC\tO\n")

    assert read_tagging(tmp_path / "a.conll", Columns()).notes == [
        f"`{tmp_path}/a.conll`: tags are those of column `3`; others with tags: `2` (--columns.tags 2)"
    ]
    assert not read_tagging(tmp_path / "a.conll", Columns(tags="2")).notes


# Dev data from the training data


@pytest.mark.parametrize("fraction", [0.1, 0.2, 0.5])
@pytest.mark.parametrize(
    "examples",
    [
        texts(*"a" * 70, *"b" * 25, *"c" * 5, "d"),
        [ClassificationExample(str(n), labels=("x",) * (n % 2) + ("y",) * (n % 3 == 0)) for n in range(100)],
        [RegressionExample(str(n), label=float(n % 10)) for n in range(100)],
        [TaggingExample((str(n),), (("O", "B-X")[n % 4 == 0],)) for n in range(100)],
    ],
)
def test_held_out_examples_have_the_same_labels(examples, fraction):
    """Each label has its fraction held out, give or take one; labels with one example are trained on."""
    train, dev = hold_out(Examples((str(n), example) for n, example in enumerate(examples)), fraction)

    assert sorted(map(str, [*train, *dev])) == sorted(map(str, examples))
    for label in {labels_of(example) for example in examples}:
        counts = [sum(labels_of(example) == label for example in part) for part in (dev, train)]
        assert abs(counts[0] - fraction * sum(counts)) <= 1
        assert counts[1]
