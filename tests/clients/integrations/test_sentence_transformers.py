from __future__ import annotations

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer, SimilarityFunction, util

from bertline import InvalidInput, ModelNotFound, ServerError
from bertline.integrations.sentence_transformers import Encoder
from bertline.testing import FakeModel
from bertline.testing import vector as fake_vector
from bertline.v1.encoder_pb2 import EmbedReply, ModelRef
from tests.clients.integrations.conftest import MAX_SEQ_LENGTH, TEXTS


@pytest.fixture(params=["plain", "unit"])
def both(request, served, served_client):
    """Return an encoder and the SentenceTransformer of its model."""
    return Encoder(served_client, model=request.param), getattr(served, request.param)


@pytest.fixture
def encoder(served_client):
    return Encoder(served_client, model="plain")


@pytest.mark.parametrize("sentences", [TEXTS, TEXTS[0], TEXTS[:1], tuple(TEXTS), np.array(TEXTS)])
def test_vectors_are_those_of_the_library(both, sentences):
    """A text, list, tuple or array gives the library's shape, type and numbers to 1e-5, also for a truncated text."""
    encoder, reference = both

    vectors, expected = encoder.encode(sentences), reference.encode(sentences)

    assert vectors.dtype == expected.dtype == np.float32
    assert vectors.shape == expected.shape
    assert encoder.encode([]).shape == (0, 0)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


@pytest.mark.parametrize(
    "arguments",
    [
        {"normalize_embeddings": True},
        {"normalize_embeddings": True, "truncate_dim": 8},
        {"batch_size": 2},
        {"batch_size": 2, "show_progress_bar": True},
        {"show_progress_bar": True},
        {"prompt": "the owl: "},
        {"output_value": "sentence_embedding", "precision": "float32", "device": None, "task": "query"},
    ],
    ids=str,
)
def test_arguments_work_as_in_the_library(both, arguments):
    """Each supported argument gives the library's vectors to 1e-5."""
    encoder, reference = both

    np.testing.assert_allclose(encoder.encode(TEXTS, **arguments), reference.encode(TEXTS, **arguments), atol=1e-5)


def test_the_first_numbers_of_vectors(served, encoder):
    """`truncate_dim` keeps the first numbers, as in the library for a model without normalisation."""
    vectors = encoder.encode(TEXTS, truncate_dim=8)

    np.testing.assert_allclose(vectors, served.plain.encode(TEXTS, truncate_dim=8), atol=1e-5)


def test_tensors(served, encoder):
    """`convert_to_tensor` returns one tensor, `convert_to_numpy=False` a list of tensors."""
    tensor = encoder.encode(TEXTS, convert_to_tensor=True)
    tensors = encoder.encode(TEXTS, convert_to_numpy=False)
    single = encoder.encode(TEXTS[0], convert_to_tensor=True)

    torch.testing.assert_close(tensor, served.plain.encode(TEXTS, convert_to_tensor=True), atol=1e-5, rtol=0)
    assert [item.shape for item in tensors] == [
        item.shape for item in served.plain.encode(TEXTS, convert_to_numpy=False)
    ]
    assert single.shape == (32,)


def test_prompts(served_client, served):
    """The encoder applies named, default, query and document prompts."""
    prompts = {"query": "owl: ", "document": "the tree: "}
    encoder = Encoder(served_client, model="plain", prompts=prompts, default_prompt_name="document")
    texts = TEXTS[:2]

    np.testing.assert_allclose(encoder.encode(texts), served.plain.encode(texts, prompt="the tree: "), atol=1e-5)
    np.testing.assert_allclose(
        encoder.encode(texts, prompt_name="query"), served.plain.encode(texts, prompt="owl: "), atol=1e-5
    )
    np.testing.assert_array_equal(encoder.encode_query(texts), encoder.encode(texts, prompt_name="query"))
    np.testing.assert_array_equal(encoder.encode_document(texts, "query"), encoder.encode_query(texts))
    np.testing.assert_array_equal(encoder.encode_document(texts), encoder.encode(texts))
    np.testing.assert_array_equal(encoder.encode_query(texts, prompt="owl "), encoder.encode(texts, prompt="owl "))


@pytest.mark.parametrize(
    ("prompts", "default"),
    [
        ({}, "query"),
        ({"query": "owl: "}, None),
        ({"query": "owl: "}, "query"),
        ({"document": "owl: "}, "document"),
        ({"passage": "owl: "}, "passage"),
    ],
    ids=str,
)
@pytest.mark.parametrize("method", ["encode", "encode_query", "encode_document"])
def test_default_prompts_are_empty(served, served_client, prompts, default, method):
    """The prompts `query` and `document` are empty by default, as in the library."""
    encoder = Encoder(served_client, model="plain", prompts=prompts, default_prompt_name=default)
    reference = SentenceTransformer(
        modules=list(served.plain), prompts=prompts, default_prompt_name=default, device="cpu"
    )

    np.testing.assert_allclose(getattr(encoder, method)(TEXTS[:2]), getattr(reference, method)(TEXTS[:2]), atol=1e-5)


@pytest.mark.parametrize("name", ["cosine", "dot"])
def test_similarity(served, served_client, name):
    """`similarity` and `similarity_pairwise` return the library's numbers as arrays."""
    encoder = Encoder(served_client, model="plain", similarity_fn_name=name)
    left, right = encoder.encode(TEXTS[:2]), encoder.encode(TEXTS[2:4])
    function = {"cosine": (util.cos_sim, util.pairwise_cos_sim), "dot": (util.dot_score, util.pairwise_dot_score)}[name]

    np.testing.assert_allclose(encoder.similarity(left, right), function[0](left, right), rtol=1e-5)
    np.testing.assert_allclose(encoder.similarity_pairwise(left, right), function[1](left, right), rtol=1e-5)
    assert encoder.similarity(left[0], right).shape == (1, 2)


@pytest.mark.parametrize("value", ["dot", SimilarityFunction.DOT_PRODUCT])
def test_the_similarity_can_be_set(served_client, value):
    """The similarity accepts a name or the library's enum; an unknown value raises ValueError and changes nothing."""
    encoder = Encoder(served_client, model="plain")
    encoder.similarity_fn_name = value
    with pytest.raises(ValueError, match=r"unknown similarity: `euclidean` \(one of: cosine, dot"):
        encoder.similarity_fn_name = SimilarityFunction.EUCLIDEAN

    assert encoder.similarity_fn_name == "dot"
    assert encoder.similarity([[2.0, 0.0]], [[3.0, 4.0]]).tolist() == [[6.0]]


def test_the_library_searches_with_the_encoder(served, encoder):
    """`semantic_search` and `paraphrase_mining` give the same results with the encoder as with the library's model."""

    def found(model):
        queries, corpus = (model.encode(texts, convert_to_tensor=True) for texts in (TEXTS[:2], TEXTS))
        hits = [[hit["corpus_id"] for hit in hits] for hits in util.semantic_search(queries, corpus, top_k=3)]
        return hits, [pair[1:] for pair in util.paraphrase_mining(model, TEXTS)]

    assert found(encoder) == found(served.plain)


def test_dimension_and_length_of_the_model(served, encoder):
    """Dimension, by either name of it, and maximum length equal the library's."""
    assert encoder.get_embedding_dimension() == 32
    assert encoder.get_sentence_embedding_dimension() == served.plain.get_sentence_embedding_dimension() == 32
    assert encoder.max_seq_length == served.plain.max_seq_length == MAX_SEQ_LENGTH
    encoder.truncate_dim = 8
    assert encoder.get_sentence_embedding_dimension() == 8
    encoder.truncate_dim = 99
    assert encoder.get_sentence_embedding_dimension() == 32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"output_value": "token_embeddings"}, "`output_value` cannot be `token_embeddings`: the server returns one"),
        ({"precision": "int8"}, "quantize_embeddings"),
        ({"chunk_size": 8}, "`chunk_size` cannot be `8`"),
        ({"batch_size": 0}, "`batch_size` must be at least 1: `0`"),
        ({"prompt_name": "passage"}, "unknown prompt: `passage` .prompts of this encoder: query, document"),
    ],
    ids=str,
)
def test_unsupported_arguments_are_refused(encoder, arguments, message):
    """Every unsupported argument raises an error."""
    with pytest.raises(ValueError, match=message):
        encoder.encode(TEXTS, **arguments)


def test_mistakes_of_the_encoder(served_client):
    """The constructor refuses unknown defaults."""
    with pytest.raises(ValueError, match="unknown similarity: `euclid`"):
        Encoder(served_client, similarity_fn_name="euclid")
    with pytest.raises(ValueError, match="unknown prompt: `passage`"):
        Encoder(served_client, default_prompt_name="passage")


def test_long_texts_can_be_refused(served_client):
    """`truncate=False` raises InvalidInput with the text's position in the whole list."""
    encoder = Encoder(served_client, model="plain", truncate=False)

    with pytest.raises(InvalidInput, match=r"^input 4, text: ") as caught:
        encoder.encode(TEXTS, batch_size=2)

    assert [item.index for item in caught.value.items] == [4]


def test_texts_without_a_vector_are_named(server, client):
    """A vector that is not finite raises ServerError with the text's position in the whole list."""

    def spoilt(request):
        numbers = np.array([np.nan if text == "nan" else 1 for text in request.texts], "<f4")
        return EmbedReply(model=ModelRef(name="fake", version="1"), dim=1, vectors=numbers.tobytes())

    server.reply("Embed", spoilt)
    with pytest.raises(ServerError, match=r"^input 4, reply: the vector is not finite$") as caught:
        Encoder(client).encode(["a", "b", "c", "d", "nan"], batch_size=3)

    assert [item.index for item in caught.value.items] == [4]


def test_all_vectors_are_of_one_model(server, client):
    """A list sent in steps uses one model version, even if another one is loaded meanwhile."""
    Encoder(client).encode(TEXTS, batch_size=2)

    models = [call.request.model for call in server.calls if call.method == "Embed"]
    assert models == [ModelRef(name="fake", version="1")] * 3


@pytest.mark.parametrize("encode", [Encoder.encode, Encoder.encode_query])
def test_blank_texts_are_refused(served_client, encode):
    """Blank texts raise InvalidInput with their positions, even with a prompt."""
    encoder = Encoder(served_client, model="plain", prompts={"query": "owl: "})

    with pytest.raises(InvalidInput, match="input 1, text: empty text; it needs at least one word") as caught:
        encode(encoder, ["owl", " ", "tree", ""])

    assert [item.index for item in caught.value.items] == [1, 3]


def test_several_models_need_a_name(served_client):
    """An ambiguous model is an error of the server; a list in steps, which needs its version before, lists them."""
    with pytest.raises(InvalidInput, match="several models are loaded for the task `embedding`"):
        Encoder(served_client).encode(TEXTS)
    with pytest.raises(ModelNotFound, match=r"give a name .*: `plain/1`, `unit/1`"):
        Encoder(served_client).encode(TEXTS, batch_size=1)


@pytest.mark.parametrize("method", ["encode", "encode_query", "encode_document"])
def test_both_names_of_the_texts(encoder, method):
    """`encode` accepts `inputs` (since sentence-transformers 5.4) and `sentences` (before)."""
    encode = getattr(encoder, method)

    np.testing.assert_array_equal(encode(inputs=TEXTS), encode(TEXTS))
    np.testing.assert_array_equal(encode(sentences=TEXTS), encode(TEXTS))


@pytest.mark.parametrize("inputs", [{"query": "text"}, {"a"}, b"text", None, [1]], ids=str)
def test_mappings_are_refused(encoder, inputs):
    """`encode` refuses a mapping instead of encoding its keys, and texts by both names."""
    with pytest.raises(TypeError, match=r"must be a|expected a string"):
        encoder.encode_query(inputs)
    with pytest.raises(TypeError, match="without `sentences`"):
        encoder.encode(TEXTS, sentences=TEXTS)


SETTINGS = {
    "prompts": {"query": "find: ", "passage": "read: "},
    "default_prompt_name": "passage",
    "similarity_fn_name": "dot",
}


def check_texts(vectors, *texts):
    assert vectors.tolist() == [fake_vector(text).tolist() for text in texts]


def test_prompts_and_similarity_of_the_model(server, client):
    """Prompts, default prompt and similarity come from the model; those of the encoder replace them."""
    server.models = [FakeModel(manifest={"settings": SETTINGS})]
    encoder = Encoder(client)
    other = Encoder(client, prompts={"query": "ask: "}, default_prompt_name="query", similarity_fn_name="cosine")

    check_texts(encoder.encode(["owl"]), "read: owl")
    check_texts(encoder.encode_query(["owl", "oak"]), "find: owl", "find: oak")
    check_texts(encoder.encode(["owl"], prompt="so: "), "so: owl")
    check_texts(encoder.encode(["owl"], prompt=""), "owl")
    check_texts(encoder.encode_document(["owl"]), "owl")
    check_texts(other.encode(["owl"]), "ask: owl")
    check_texts(other.encode(["owl"], "passage"), "read: owl")
    assert (encoder.similarity_fn_name, other.similarity_fn_name) == ("dot", "cosine")
    del encoder.prompts["document"]
    check_texts(encoder.encode_document(["owl"]), "read: owl")
