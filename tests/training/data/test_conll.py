"""Tests of reading the variants of CoNLL files: what counts as a word."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.tagging import TaggingExample
from training.data.columns import Columns, existing_columns
from training.data.conll import read_conll
from training.data.tagging import read_tagging
from training.objectives.labelled import read_examples

SENTENCES = [
    TaggingExample(("#", "York", "is", "#1"), ("O", "B-LOC", "O", "O")),
    TaggingExample(("Ann", "#", "saw"), ("B-PER", "I-PER", "O")),
    TaggingExample(("#Rome",), ("B-LOC",)),
]


def write(path, rows_of, *, before=(), after="", separator="\t"):
    """Write the sentences with the cells that `rows_of(words, tags)` gives."""
    lines = []
    for number, item in enumerate(SENTENCES, start=1):
        lines += [line.format(number) for line in before]
        lines += [separator.join(cells) + after for cells in rows_of(item.words, item.tags)]
        lines.append("")
    path.write_text("\n".join(lines))
    return path


def plain(words, tags):
    return zip(words, tags, strict=True)


def numbered(words, tags):
    """Return GermEval's columns; the last one holds nested names."""
    return ((str(n), word, tag, "O") for n, (word, tag) in enumerate(zip(words, tags, strict=True), start=1))


def numbered_from_0(words, tags):
    return ((str(n), word, tag) for n, (word, tag) in enumerate(zip(words, tags, strict=True)))


def conll_2003(words, tags):
    return ((word, "NN", "I-NP", tag) for word, tag in zip(words, tags, strict=True))


def ud(words, tags):
    """Yield rows of CoNLL-U with a range of words and an empty node."""
    yield ["1-2", "both", *"________"]
    for n, (word, tag) in enumerate(zip(words, tags, strict=True), start=1):
        yield [str(n), word, "lemma", tag, "X", "A=B|C=D", "0", "root", "_", "SpaceAfter=No"]
        yield [f"{n}.1", "left-out", "_", "VERB", *"______"]


COMMENTS = {
    "none": (),
    "MultiCoNER": ("# id {}\tdomain=train",),
    "UD": ("# sent_id = {}", "# text = York is in O", "# newpar", "#"),
    "GermEval": ("#\thttp://de.wikipedia.org/{}\t[2009-10-17]",),
    "OntoNotes": ("#begin document (x); part {}",),
    "a last word that is a tag": ("# text = O",),
}
LAYOUTS = {"plain": plain, "numbered": numbered, "from 0": numbered_from_0, "2003": conll_2003, "ud": ud}


@pytest.mark.parametrize("comments", COMMENTS.values(), ids=COMMENTS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("separator", "after"), [("\t", ""), (" ", ""), ("\t", "\t"), (" ", "  "), ("   ", "")])
def test_every_layout_gives_the_same_sentences(comments, layout, separator, after, tmp_path):
    """The reader skips comments, word numbers, ranges and blanks, and keeps a word `#`, also at the start."""
    path = write(tmp_path / "a.txt", LAYOUTS[layout], before=comments, after=after, separator=separator)

    found = read_tagging(path, Columns(tags="2") if layout == "numbered" else Columns())

    assert found == SENTENCES


WORDS = st.sampled_from(["#", "#tag", "##", "#1", "the", "1", "2", "-", "a=b", "#a=b"])


@given(sentences=st.lists(st.lists(WORDS, min_size=1, max_size=4), min_size=1, max_size=5), columns=st.integers(0, 2))
def test_words_stay_words(sentences, columns, tmp_path_factory):
    """Words stay words, also when they look like comments or numbers."""
    path = tmp_path_factory.mktemp("conll") / "a.conll"
    rows = [["x", *"__"[:columns], "O"], ["the", *"__"[:columns], "O"]]
    written = [rows, *([[word, *"__"[:columns], "B-X"] for word in words] for words in sentences)]
    path.write_text("\n".join("\n".join("\t".join(row) for row in sentence) + "\n" for sentence in written))

    assert [example.words for example in read_conll(path)][1:] == [tuple(words) for words in sentences]


def test_places_are_of_first_words(tmp_path):
    """The location of a sentence is the line of its first word, not of a comment before it."""
    (tmp_path / "a.conll").write_text("# id 1\n-DOCSTART- O\n\n# id 1\na O\n\n\n# id 2\nb O\n# O\n")

    found = read_tagging(tmp_path / "a.conll", Columns())

    assert found.locations == [f"`{tmp_path}/a.conll`, line {line}" for line in (5, 9)]
    assert [example.words for example in found] == [("a",), ("b", "#")]


@pytest.mark.parametrize(
    ("columns", "tags"),
    [
        ({}, ("NOUN", "DET")),
        ({"tags": "xpos"}, ("NN", "DT")),
        ({"tags": "DEPREL"}, ("root", "det")),
        ({"tags": "feats"}, ("N=1", "_")),
    ],
)
def test_columns_of_ud_are_read_by_name(columns, tags, tmp_path):
    """The reader takes columns of CoNLL-U by name, by default `form` and `upos`."""
    path = tmp_path / "a.conllu"
    path.write_text("1\tcat\tc\tNOUN\tNN\tN=1\t0\troot\t_\t_\n2\tthe\tt\tDET\tDT\t_\t1\tdet\t_\t_\n")

    assert read_tagging(path, Columns(**columns)) == [TaggingExample(("cat", "the"), tags)]
    assert existing_columns([path], Columns(**columns)) == Columns(**columns)
    with pytest.raises(ValueError, match=r"line 1: no `deps`; name another column with --columns\.tags"):
        read_tagging(path, Columns(tags="deps"))


def test_conll_u_plus_names_its_columns(tmp_path):
    """A CoNLL-U Plus file names its own columns."""
    path = tmp_path / "a.conllup"
    path.write_text("# global.columns = ID FORM NER:X MISC\n1\tcat\tB-X\t_\n2\tthe\tO\tq\n")

    assert read_tagging(path, Columns(tags="2")) == [TaggingExample(("cat", "the"), ("B-X", "O"))]
    path.write_text("# global.columns = ID FORM UPOS\n1\tcat\tNOUN\t_\n")
    with pytest.raises(ValueError, match=r"3 names in `global\.columns`, but 4 columns"):
        read_tagging(path, Columns())


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("1 O|2 O|3 B-X", "line 1: the first column holds numbers, not words; name the column of words with --columns"),
        ("bn/1 0 cat O|bn/1 1 dog O||bn/2 0 a O|bn/2 1 b O", "line 1: the first column is the same in a whole sent"),
        ("a\tO|#id1\tfoo||#id2\tfoo", "line 4: a comment, or a word with a tag"),
        ("a O|# a comment in a sentence||b O", "line 2: 6 columns, but line 1 has 2"),
        (
            "O a|B-X b|O c",
            "line 1: column 0, of words, holds tags: `O`; if column 1 has the words, give --columns.tokens 1",
        ),
        ("word\tner|a\tO", "line 1: a header, which CoNLL does not have"),
        ("the O|cat\t", "line 2: expected a word and a tag: `cat`"),
        ("a text\tyes|" * 2500, "line 2001: 2,000 lines without an empty one; CoNLL has a word"),
    ],
)
def test_other_layouts_are_refused(lines, message, tmp_path):
    """The error states what the reader cannot interpret."""
    (tmp_path / "a.txt").write_text(lines.replace("|", "\n") + "\n")

    with pytest.raises(ValueError, match=message):
        read_tagging(tmp_path / "a.txt", Columns())


def test_columns_of_conll_have_numbers(tmp_path):
    """A number from 0 names a column of CoNLL, and names of table columns are refused."""
    path = write(tmp_path / "a.txt", numbered)
    (tmp_path / "a.jsonl").write_text(json.dumps({"tokens": ["a"], "tags": ["O"]}) + "\n")
    read = lambda paths, **names: read_examples("tagging", paths, columns=Columns(**names), tokenizer=None)  # noqa: E731

    assert list(itertools.chain(*[item.tags for item in read([path], tokens="1", tags="3")])) == ["O"] * 8
    assert existing_columns([path], Columns(tokens="1", tags="2")) == Columns(tokens="1", tags="2")
    assert existing_columns([path], Columns(tags="ner")) == Columns()
    assert existing_columns([tmp_path / "a.jsonl"], Columns(tags="2")) == Columns()
    with pytest.raises(ValueError, match=r"a\.txt`: no column `7` \(columns: `0` to `3`\)"):
        read([path], tags="7")
    with pytest.raises(ValueError, match=r"a\.txt` is not a table, so it has no column `ner`"):
        read([path], tags="ner")
