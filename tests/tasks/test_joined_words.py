"""Plain text is split into words like the training data."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks import settings_from_dict, settings_to_dict
from tasks.tagging import Tagging, TaggingExample, TaggingSettings
from tasks.text.joined_words import JoinedWords, learn_joined_words

NAMES = [
    "Jean-Luc Picard met Anne-Marie in Stratford-upon-Avon .".split(),
    "O'Brien of AT&T paid 1,000.50 in the U.S. on 12/05 .".split(),
    "St. Mary , he said , was here at 10:30 . St. Paul , St. Anne and the U.S. too .".split(),
    ["John", "'s", "and", "Ann", "'s", "and", "Tom", "'s", "house", "D'Arcy"],
]
ITALIAN = [f"l' {noun} dell' {noun} è grande".split() for noun in ("Italia", "Africa", "Arno", "Umbria")]
TWEETS = [f"@user{number} likes #tag{number} {number}% of it".split() for number in range(12)]
HYPHENS_APART = [["New", "-", "York", "-", "based"], ["Jean", "-", "Luc"]]
CHINESE = [["中", "国", "-", "香", "港"], ["Jean-Luc", "在", "中", "国"]]


def words_of(tokenizer, sentences, text, max_seq_length=128):
    rules = learn_joined_words(sentences)
    settings = TaggingSettings(
        max_seq_length=max_seq_length, labels=("O", "B-A"), joined_marks=rules.marks, joined_words=rules.words
    )
    found = Tagging(tokenizer, settings).complete(TaggingExample((), source=text))
    assert [text[start:end] for start, end in found.offsets] == list(found.words)
    return list(found.words)


@pytest.mark.parametrize(
    ("sentences", "text", "words"),
    [
        (NAMES, "Hans-Peter O'Neil-Smith.", ["Hans-Peter", "O'Neil-Smith", "."]),
        (NAMES, "R&D (and H&M)", ["R&D", "(", "and", "H&M", ")"]),
        (NAMES, "St. Ives, U.S.", ["St.", "Ives", ",", "U.S."]),
        (NAMES, "Mary's D'Arcy", ["Mary", "'s", "D'Arcy"]),
        (NAMES, "'quoted' \"words\" - here", ["'", "quoted", "'", '"', "words", '"', "-", "here"]),
        (NAMES, "2,500 and 11:15, then", ["2,500", "and", "11:15", ",", "then"]),
        (NAMES, "a,b", ["a", ",", "b"]),
        (NAMES, "Jean--Luc -Luc Jean-", ["Jean", "-", "-", "Luc", "-", "Luc", "Jean", "-"]),
        (NAMES, "", []),
        (ITALIAN, "l'Europa dell'Asia", ["l'", "Europa", "dell'", "Asia"]),
        (TWEETS, "@new_user #more 7%!", ["@new", "_", "user", "#more", "7%", "!"]),
        (HYPHENS_APART, "Anne-Marie", ["Anne", "-", "Marie"]),
        (CHINESE, "中-国 Anne-Marie", ["中", "-", "国", "Anne-Marie"]),
        ([["plain", "words"]], "Jean-Luc's U.S.", ["Jean", "-", "Luc", "'", "s", "U", ".", "S", "."]),
    ],
)
def test_text_is_split_like_the_training_data(tokenizer, sentences, text, words):
    """Marks belong to a word where they do in the training data; other marks are separate words."""
    assert words_of(tokenizer, sentences, text) == words


LETTERS = st.text("abcdé", min_size=1, max_size=5)


@given(data=st.data(), mark=st.sampled_from("-'&./’–_·"))
def test_words_with_a_mark_inside_are_found_again(tokenizer, data, mark):
    """Training data with a mark inside words make the same words join again, for any mark."""
    names = data.draw(st.lists(st.lists(LETTERS, min_size=2, max_size=4).map(mark.join), min_size=1, max_size=4))
    words = data.draw(st.permutations([*names, *data.draw(st.lists(LETTERS, max_size=6))]))

    assert words_of(tokenizer, [names], " ".join(words)) == words


@given(
    text=st.text(st.sampled_from("ab1é中 -'.,&@#\u0301\u200b"), max_size=40),
    marks=st.sets(st.sampled_from(["a-a", "0,0", "a.a", "@a", "a.", "a'a", "a.a."])).map(sorted),
    words=st.sets(st.sampled_from(["'a", "ab.", "a.b.", "#1"])).map(sorted),
)
def test_words_are_whole_parts_in_order(tokenizer, text, marks, words):
    """Joined words consist of neighbouring parts, in order, without loss or overlap."""
    parts = tokenizer.word_offsets(text)
    joined = JoinedWords(tuple(marks), tuple(words)).join(text, parts, 10)
    starts, ends = parts[:, 0].tolist(), parts[:, 1].tolist()

    assert all(start in starts and end in ends and start < end for start, end in joined.tolist())
    covered = [set(range(start, end)) for start, end in joined.tolist()]
    assert set().union(*covered) == {place for start, end in parts.tolist() for place in range(start, end)}
    assert sum(map(len, covered)) == int((parts[:, 1] - parts[:, 0]).sum())
    assert joined.tolist() == sorted(joined.tolist())


def test_words_that_are_too_long_stay_divided(tokenizer):
    """Words are joined only up to the longest word that fits into a sequence."""
    assert words_of(tokenizer, NAMES, "a-b-c-d-e", max_seq_length=8) == list("a-b-c-d-e")
    assert words_of(tokenizer, NAMES, "a-b-c-d-e", max_seq_length=11) == ["a-b-c-d-e"]


def test_the_check_can_end_the_work(tokenizer):
    """An exception of the check ends joining."""
    calls = []

    def check():
        calls.append(1)
        if len(calls) > 3:
            raise TimeoutError

    text = "a-" * 10_000
    with pytest.raises(TimeoutError):
        JoinedWords(("a-a",)).join(text, tokenizer.word_offsets(text), 10, check)


@pytest.mark.parametrize("mark", ["", "-", "a", "aa", "a--a", "0-a", "a.a,", "ab"])
def test_malformed_marks_are_refused(mark):
    """Malformed marks in settings are refused."""
    with pytest.raises(ValueError, match="joined_marks of tagging are written as"):
        settings_from_dict("tagging", {"labels": ["O", "B"], "joined_marks": [mark]})


def test_settings_come_back():
    """Learned marks and words are the same after a round trip through settings."""
    rules = learn_joined_words(NAMES)
    settings = TaggingSettings(labels=("O", "B"), joined_marks=rules.marks, joined_words=rules.words)

    assert {"a-a", "a&a", "a'a", "0,0", "0:0"} <= set(rules.marks)
    assert rules.words == ("'s", "st.")
    assert settings_from_dict("tagging", settings_to_dict(settings)) == settings
    assert learn_joined_words([]) == JoinedWords()
    assert np.array_equal(JoinedWords().join("a-b", np.array([[0, 1], [1, 2], [2, 3]]), 9), [[0, 1], [1, 2], [2, 3]])
