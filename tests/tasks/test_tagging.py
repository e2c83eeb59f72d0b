"""Tagging: a tag for each word, over one or several windows, and entities with offsets."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks import InvalidExamplesError
from tasks.tagging import Tagging, TaggingExample, TaggingSettings

LABELS = ("B-LOC", "I-LOC", "O")
WORDS = st.text(st.sampled_from("abé中\u200b\u0301-"), min_size=1, max_size=6) | st.sampled_from(
    ["unwanted", "x" * 120]
)


def make_task(tokenizer, max_seq_length=8, doc_stride=0):
    return Tagging(tokenizer, TaggingSettings(max_seq_length=max_seq_length, labels=LABELS, doc_stride=doc_stride))


def outputs_of(features, tags):
    """Return logits that predict these tags at the first token of each word in its best window only."""
    outputs = []
    for window in features:
        logits = np.tile(np.float32([0, 0, 0]), (len(window), 1))
        for word, position in zip(*window.tagged_words, strict=True):
            logits[position, LABELS.index(tags[word])] = 5
        outputs.append({"logits": logits})
    return outputs


@given(data=st.data(), words=st.lists(WORDS, min_size=1, max_size=12), doc_stride=st.integers(0, 8))
def test_every_word_gets_its_tag(tokenizer, data, words, doc_stride):
    """Each word gets one tag, also words without tokens or longer than a window."""
    words = ["a", *words]  # a sentence needs one word that is read
    task = make_task(tokenizer, doc_stride=doc_stride)
    tags = [data.draw(st.sampled_from(LABELS)) for _ in words]
    example = TaggingExample(tuple(words), tuple(tags))

    features = task.encode([example])[0]
    prediction = task.decode(example, features, outputs_of(features, tags))

    assert all(len(window) <= 8 for window in features)
    assert [word for window in features for word in window.tagged_words[0]] == list(range(len(words)))
    assert prediction.tags == tuple(tags)
    assert len(prediction.scores) == len(words)
    assert task.score([example], [prediction])["accuracy"] == 1.0
    for entity in prediction.entities:
        assert example.text[entity.start : entity.end] == entity.text


def test_strict_tags_go_on_with_an_entity(tokenizer):
    """Strict tagging replaces an `I-` after `O` by the best valid tag, with the score of that tag."""
    task = make_task(tokenizer, 16)
    strict = Tagging(tokenizer, replace(task.settings, strict=True))
    example = TaggingExample(("a", "b", "é"))
    features = task.encode([example])[0]
    logits = np.zeros((len(features[0]), 3), dtype=np.float32)
    logits[features[0].positions] = [[0, 0, 3], [2, 2.5, 0], [0, 4, 0]]

    free, found = (item.decode(example, features, [{"logits": logits}]) for item in (task, strict))

    assert free.tags == ("O", "I-LOC", "I-LOC")
    assert found.tags == ("O", "B-LOC", "I-LOC")
    assert found.scores[1] == pytest.approx(np.exp(2) / (np.exp(2) + np.exp(2.5) + 1))
    assert [(entity.start, entity.end) for entity in found.entities] == [(2, 5)]


@pytest.mark.parametrize(
    ("labels", "likeliest", "found"),
    [
        ("B-X I-X L-X O U-X", "B-X I-X I-X U-X", [("X", 0, 5), ("X", 6, 7)]),
        ("B E M O S", "B M M S", [("_", 0, 5), ("_", 6, 7)]),
        ("E-X I-X O", "I-X I-X I-X E-X", [("X", 0, 7)]),
    ],
)
def test_entities_end_as_their_scheme_ends_them(tokenizer, labels, likeliest, found):
    """Entities have the ends that their scheme requires, for different prefix letters."""
    names = tuple(labels.split())
    settings = TaggingSettings(max_seq_length=16, labels=names, strict="E-X" not in names, strict_ends=True)
    task = Tagging(tokenizer, settings)
    example = TaggingExample(("a", "b", "é", "a"))
    features = task.encode([example])[0]
    logits = np.zeros((len(features[0]), len(names)), dtype=np.float32)
    logits[features[0].positions, [names.index(tag) for tag in likeliest.split()]] = [4, 3, 1, 5]

    prediction = task.decode(example, features, [{"logits": logits}])

    assert [(entity.type, entity.start, entity.end) for entity in prediction.entities] == found


def test_the_first_token_of_a_word_carries_its_tag(tokenizer):
    """Only the first token of a word decides its tag."""
    task = make_task(tokenizer, 16)
    example = TaggingExample(("unwanted", "é", "you"))
    features = task.encode([example])[0]

    prediction = task.decode(example, features, outputs_of(features, ["B-LOC", "I-LOC", "O"]))

    assert [task.tokenizer.token(int(i)) for i in features[0].input_ids[1:4]] == ["un", "##want", "##ed"]
    assert features[0].positions.tolist() == [1, 4, 5]
    assert prediction.tags == ("B-LOC", "I-LOC", "O")
    (entity,) = prediction.entities
    assert (entity.type, entity.start, entity.end, entity.text) == ("LOC", 0, 10, "unwanted é")
    assert entity.score == np.mean(prediction.scores[:2])
    assert task.to_dict(example, prediction)["entities"] == [
        {"type": "LOC", "start": 0, "end": 10, "text": "unwanted é", "score": entity.score}
    ]


@pytest.mark.parametrize(("doc_stride", "least"), [(0, 0), (8, 4), (3, 6)])
def test_words_are_tagged_where_they_have_context(doc_stride, least, word_tokenizer):
    """More overlap of windows gives words more context at the edges."""
    task = make_task(word_tokenizer, max_seq_length=18, doc_stride=doc_stride)
    features = task.encode([TaggingExample(("w1",) * 100)])[0]

    context = [
        min(position - 1, len(window) - 2 - position)
        for window in features
        for word, position in zip(*window.tagged_words, strict=True)
        if 16 <= word < 84
    ]

    assert len(context) == 84 - 16
    assert min(context) == least


def test_a_word_that_would_be_cut_is_refused_without_truncation(word_tokenizer, tokenizer):
    """Without truncation a word longer than a window is refused, and many words use windows."""
    many = TaggingExample(("w1",) * 50)
    assert len(make_task(word_tokenizer).encode([many], truncate=False)[0]) == 9

    with pytest.raises(InvalidExamplesError, match=r"example 1, word: text too long: `12` tokens \(maximum `8`\)"):
        make_task(tokenizer).encode([TaggingExample(("a",)), TaggingExample(("abcdefghij",))], truncate=False)
    with pytest.raises(InvalidExamplesError, match="example 0, text: empty text"):
        make_task(tokenizer).encode([TaggingExample(("\u200b",))])
    with pytest.raises(InvalidExamplesError, match="example 0, text: not UTF-8"):
        make_task(tokenizer).encode([TaggingExample(("a", "\ud83d"))])
