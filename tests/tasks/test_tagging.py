"""Every word gets a tag, in one window or several, and entities stand where they say."""

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


def make_task(tokenizer, max_seq_length=8):
    return Tagging(tokenizer, TaggingSettings(max_seq_length=max_seq_length, labels=LABELS))


def outputs_of(features, tags):
    """Logits that say these tags at the first token of each word, and something else at all other tokens."""
    outputs = []
    for window in features:
        logits = np.tile(np.float32([0, 0, 0]), (len(window), 1))
        for position, tag in zip(window.positions, tags[window.first_word :], strict=False):
            logits[position, LABELS.index(tag)] = 5
        outputs.append({"logits": logits})
    return outputs


@given(data=st.data(), words=st.lists(WORDS, min_size=1, max_size=12))
def test_every_word_gets_its_tag(tokenizer, data, words):
    """Also words without a token or longer than a window; windows cover the words in order and are short enough."""
    words = ["a", *words]  # a sentence needs one word that is read
    task = make_task(tokenizer)
    tags = [data.draw(st.sampled_from(LABELS)) for _ in words]
    example = TaggingExample(tuple(words), tuple(tags))

    features = task.encode([example])[0]
    prediction = task.decode(example, features, outputs_of(features, tags))

    assert all(len(window) <= 8 for window in features)
    assert sum(len(window.positions) for window in features) == len(words)
    assert prediction.tags == tuple(tags)
    assert len(prediction.scores) == len(words)
    assert task.score([example], [prediction])["accuracy"] == 1.0
    for entity in prediction.entities:
        assert example.text[entity.start : entity.end] == entity.text


def test_the_first_token_of_a_word_carries_its_tag(tokenizer):
    """`unwanted` is three tokens; what is said at the other two changes nothing."""
    task = make_task(tokenizer, 16)
    example = TaggingExample(("unwanted", "é", "you"))
    features = task.encode([example])[0]

    prediction = task.decode(example, features, outputs_of(features, ["B-LOC", "I-LOC", "O"]))

    assert [task.tokenizer.token(int(i)) for i in features[0].input_ids[1:4]] == ["un", "##want", "##ed"]
    assert features[0].positions.tolist() == [1, 4, 5]
    assert prediction.tags == ("B-LOC", "I-LOC", "O")
    (entity,) = prediction.entities
    assert (entity.type, entity.start, entity.end, entity.text) == ("LOC", 0, 10, "unwanted é")
    assert task.to_dict(example, prediction)["entities"] == [
        {"type": "LOC", "start": 0, "end": 10, "text": "unwanted é"}
    ]


def test_a_word_that_would_be_cut_is_refused_without_truncation(word_tokenizer, tokenizer):
    """Many words are not too long: they are read in windows."""
    many = TaggingExample(("w1",) * 50)
    assert len(make_task(word_tokenizer).encode([many], truncate=False)[0]) == 9

    with pytest.raises(InvalidExamplesError, match="example 1, word: text too long: 12 tokens came, 8 fit"):
        make_task(tokenizer).encode([TaggingExample(("a",)), TaggingExample(("abcdefghij",))], truncate=False)
    with pytest.raises(InvalidExamplesError, match="example 0, text: empty text"):
        make_task(tokenizer).encode([TaggingExample(("\u200b",))])
    with pytest.raises(InvalidExamplesError, match="example 0, text: not UTF-8"):
        make_task(tokenizer).encode([TaggingExample(("a", "\ud83d"))])
