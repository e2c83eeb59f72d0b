"""Sentences that are changed until they may be unacceptable."""

import random
from collections import Counter

import pytest

from mini.acceptability import (
    changed,
    doubled,
    exchanged,
    inflected,
    lengthened,
    main,
    moved,
    shortened,
    swapped,
    with_changed,
)
from tests.commands import call

WORDS = "The old cats sleep".split()


def found(change):
    """Return the results of a change with different random numbers."""
    return {" ".join(change(WORDS, random.Random(seed))) for seed in range(300)}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (swapped, {"old The cats sleep", "The cats old sleep", "The old sleep cats"}),
        (shortened, {"old cats sleep", "The cats sleep", "The old sleep", "The old cats"}),
        (
            doubled,
            {"The The old cats sleep", "The old old cats sleep", "The old cats cats sleep", "The old cats sleep sleep"},
        ),
    ],
)
def test_changes(change, expected):
    """Each change makes every sentence that its name promises, and no other."""
    assert found(change) == expected


def test_changes_with_other_words():
    """Moving keeps the words, inserting adds one, exchanging replaces a function word, an ending changes one word."""
    assert {tuple(sorted(text.split())) for text in found(moved)} == {tuple(sorted(WORDS))}
    assert {sum((Counter(text.split()) - Counter(WORDS)).values()) for text in found(lengthened)} == {1}
    assert all(text.endswith("old cats sleep") for text in found(exchanged))
    assert inflected(["cats,"], random.Random(0)) == ["cat,"]
    assert {"The old cat sleep", "The old cats sleeps", "The old cats sleeping"} < found(inflected)
    assert exchanged(["cats", "sleep"], random.Random(0)) in (["cats"], ["sleep"])


@pytest.mark.parametrize("seed", range(50))
def test_changed_sentence_keeps_capital_and_mark(seed):
    """A changed sentence begins with a capital and ends with its mark."""
    text = changed("The old cats sleep?", random.Random(seed))

    assert text != "The old cats sleep?"
    assert text[0].isupper()
    assert text.endswith("?")
    assert text.count("?") == 1


def test_command(tmp_path, monkeypatch, capfd):
    """The command keeps plain short sentences, and writes each with a changed copy; without one it refuses."""
    (source := tmp_path / "sentences.txt").write_text("The old cats sleep.\nToo short.\nIn 1810 the cats slept.\n")
    out = tmp_path / "out.txt"

    assert "2 sentences" in call(main, [str(source), str(out)], monkeypatch, capfd).stdout
    lines = out.read_text().splitlines()
    assert "The old cats sleep." in lines
    assert len(lines) == 2
    assert with_changed(["The old cats sleep."]) == lines

    result = call(main, [str(source), str(source)], monkeypatch, capfd)
    assert result.returncode == 1
    assert "give another file to write" in result.stderr

    source.write_text("Too short.\n")
    result = call(main, [str(source), str(tmp_path / "none.txt")], monkeypatch, capfd)
    assert result.returncode == 1
    assert "no plain sentence of 4 to 13 words" in result.stderr
    assert not (tmp_path / "none.txt").exists()
