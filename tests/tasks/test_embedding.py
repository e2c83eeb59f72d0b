"""Embedding: vectors of texts."""

from dataclasses import replace

import numpy as np
import pytest

from tasks.base import InvalidExamplesError
from tasks.embedding import Embedding, EmbeddingSettings
from tasks.text.tokenizer import Tokenizer
from tests import toy_tokenizers

VECTOR = np.random.default_rng(0).normal(size=8).astype(np.float32)


def embed(tokenizer, vector, **values):
    task = Embedding(tokenizer, EmbeddingSettings(**values))
    return task.decode("a b", task.encode(["a b"])[0], [{"sentence_embedding": vector}])


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_normalize(tokenizer, dtype):
    """Normalisation gives a float32 vector of length 1 in the same direction, for float16 and float32 outputs."""
    plain = embed(tokenizer, VECTOR.astype(dtype))
    unit = embed(tokenizer, VECTOR.astype(dtype), normalize=True)

    assert unit.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(unit), 1, rtol=1e-3)
    np.testing.assert_allclose(unit * np.linalg.norm(plain), plain, rtol=1e-2)


def test_with_settings(tokenizer):
    """`with_settings` returns a changed task, refuses an unknown pooling, and leaves the original task unchanged."""
    task = Embedding(tokenizer, EmbeddingSettings())

    changed = task.with_settings(pooling="mean", normalize=True)

    assert changed.settings == EmbeddingSettings(pooling="mean", normalize=True)
    assert task.with_settings() is task
    assert task.settings == EmbeddingSettings()
    with pytest.raises(ValueError, match=r"pooling must be 'cls', 'mean', .*: `median`"):
        task.with_settings(pooling="median")


PROMPTS = {"query": "w a ", "document": ""}


@pytest.mark.parametrize(
    ("default", "name", "expected"),
    [
        (None, None, "b"),
        ("query", None, "w a b"),
        ("query", "", "b"),
        (None, "query", "w a b"),
        (None, "document", "b"),
    ],
)
def test_prompts(tokenizer, default, name, expected):
    """The named prompt, or the default one, stands before each text."""
    settings = EmbeddingSettings(prompts=PROMPTS, default_prompt_name=default)
    ((found,),) = Embedding(tokenizer, settings, prompt_name=name).encode(["b"])
    ((plain,),) = Embedding(tokenizer, EmbeddingSettings()).encode([expected])

    assert found.input_ids.tolist() == plain.input_ids.tolist()


def test_blank_texts_after_a_prompt(tokenizer):
    """A text that has no tokens without the prompt is invalid, as it is without one."""
    task = Embedding(tokenizer, EmbeddingSettings(prompts=PROMPTS), prompt_name="query")

    with pytest.raises(InvalidExamplesError) as caught:
        task.encode(["b", " ", "", "\ud800"])

    assert [item.index for item in caught.value.invalid] == [1, 2, 3]


@pytest.mark.parametrize("kind", toy_tokenizers.KINDS)
@pytest.mark.parametrize("prompt", ["The old: ", "old:"])
def test_each_window_begins_with_the_prompt(kind, prompt):
    """Windows hold the prompt and a part of the text, whose tokens are their weights; a short text is read as usual."""
    tokenizer = Tokenizer(toy_tokenizers.KINDS[kind]())
    settings = EmbeddingSettings(max_seq_length=32, prompts={"query": prompt})
    task = Embedding(tokenizer, settings, windows=True, prompt_name="query")
    text = "the cat sees a red house near the river. " * 8

    (windows,), (short,) = task.encode([text]), task.encode(["cat"])
    vector = task.decode(text, windows, [{"sentence_embedding": row} for row in np.eye(len(windows), dtype=np.float32)])

    template = tokenizer.single
    start, end = len(template.ids[0]), len(template.ids[1])
    (before,), (whole,) = ([item.ids for item in tokenizer.tokenize([one])] for one in (prompt.strip(), prompt + text))
    bodies = [window.input_ids[start:-end].tolist() for window in windows]
    assert len(windows) > 2
    assert [body[: len(before)] for body in bodies] == [before.tolist()] * len(windows)
    assert before.tolist() + [token for body in bodies for token in body[len(before) :]] == whole.tolist()
    lengths = [len(body) - len(before) for body in bodies]
    np.testing.assert_allclose(vector, np.array(lengths) / sum(lengths), rtol=1e-6)
    (plain,) = replace(task, windows=False).encode(["cat"])
    assert [window.input_ids.tolist() for window in short] == [plain[0].input_ids.tolist()]


def test_a_prompt_takes_at_most_half_of_a_window(tokenizer):
    """A longer prompt would multiply the cost of a text, so it is refused."""
    settings = EmbeddingSettings(max_seq_length=12, prompts={"half": "a " * 5, "more": "a " * 6})

    assert Embedding(tokenizer, settings, windows=True, prompt_name="half").encode(["b"])
    with pytest.raises(ValueError, match=r"the prompt has `6` tokens, more than half of a window of 10; set"):
        Embedding(tokenizer, settings, windows=True, prompt_name="more").encode(["b"])


def test_a_shortened_vector_is_normalised(tokenizer):
    """A vector cut to its first dimensions is normalised after the cut."""
    task = Embedding(tokenizer, EmbeddingSettings(normalize=True), dimensions=2)
    vector = task.decode("a", task.encode(["a"])[0], [{"sentence_embedding": np.float32([3, 4, 12])}])

    np.testing.assert_allclose(vector, [0.6, 0.8], rtol=1e-6)


@pytest.mark.parametrize(
    ("prompts", "query", "document"),
    [
        ({}, "", ""),
        ({"query": "q"}, "query", ""),
        ({"passage": "p", "corpus": "c"}, "", "passage"),
        ({"query": "q", "document": "", "passage": "p"}, "query", "document"),
    ],
)
def test_prompts_for_queries_and_documents(prompts, query, document):
    """Prompts are found under the names that sentence-transformers looks for."""
    settings = EmbeddingSettings(prompts=prompts, default_prompt_name=next(iter(prompts), None))

    assert (settings.prompt_name_for("query"), settings.prompt_name_for("document")) == (query, document)
