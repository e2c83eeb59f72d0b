from __future__ import annotations

import asyncio

import numpy as np
import pytest

pytest.importorskip("langchain_core", reason="langchain-core is not installed; it is in the group `integrations`")

from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore

from bertline import AsyncClient, Client, InvalidInput
from bertline.integrations.langchain import BertlineEmbeddings
from bertline.testing import FakeModel, FakeServer, vector
from tests.clients.integrations.conftest import TEXTS


@pytest.fixture
def embeddings(served_client):
    return BertlineEmbeddings(served_client, model="plain", truncate=True)


def cosines(reference, query):
    """Return the cosine of each of TEXTS to a query, computed by sentence-transformers."""
    vectors = reference.encode([query, *TEXTS], normalize_embeddings=True)
    return vectors[1:] @ vectors[0]


def test_a_vector_store_searches_with_the_embeddings(served, embeddings):
    """LangChain's store returns the reference model's order and scores."""
    store = InMemoryVectorStore(embeddings)
    store.add_documents([Document(text, metadata={"number": number}) for number, text in enumerate(TEXTS)])

    found = store.similarity_search_with_score("the old owl", k=len(TEXTS))

    expected = cosines(served.plain, "the old owl")
    assert [document.metadata["number"] for document, _ in found] == list(np.argsort(-expected))
    np.testing.assert_allclose([score for _, score in found], sorted(expected, reverse=True), atol=1e-5)


def test_the_awaited_methods_use_the_async_client(served):
    """The coroutines use the AsyncClient only."""

    async def search():
        async with AsyncClient(served.target) as client:
            embeddings = BertlineEmbeddings(async_client=client, model="plain", truncate=True)
            store = await InMemoryVectorStore.afrom_texts(TEXTS, embeddings)
            with pytest.raises(ValueError, match="have only an `async_client`"):
                embeddings.embed_query("owl")
            return await store.asimilarity_search("the old owl", k=1)

    expected = TEXTS[int(np.argmax(cosines(served.plain, "the old owl")))]
    assert [document.page_content for document in asyncio.run(search())] == [expected]


def test_the_awaited_methods_without_an_async_client(embeddings):
    """Without an AsyncClient, the coroutines use the blocking client in a thread."""

    async def both():
        return await embeddings.aembed_query(TEXTS[0]), await embeddings.aembed_documents(TEXTS)

    query, documents = asyncio.run(both())

    assert query == embeddings.embed_query(TEXTS[0])
    assert documents == embeddings.embed_documents(TEXTS)


def test_vectors_are_lists_of_numbers(embeddings):
    """The embeddings return lists of floats, as LangChain's stores require."""
    vectors = embeddings.embed_documents(TEXTS)

    assert [len(vector) for vector in vectors] == [32] * len(TEXTS)
    assert {type(number) for vector in vectors for number in vector} == {float}
    assert embeddings.embed_documents([]) == []


def test_prompts_and_options(served, served_client):
    """Queries and documents get their prompts, and the server gets the options of `Client.embed`."""
    options = {"normalize": True, "dimensions": 8, "truncate": True}
    embeddings = BertlineEmbeddings(
        served_client, model="plain", query_prompt="owl: ", document_prompt="the tree: ", **options
    )
    expected = {"normalize_embeddings": True, "truncate_dim": 8}

    query = served.plain.encode(TEXTS[0], prompt="owl: ", **expected)
    documents = served.plain.encode(TEXTS, prompt="the tree: ", **expected)

    np.testing.assert_allclose(embeddings.embed_query(TEXTS[0]), query, atol=1e-5)
    np.testing.assert_allclose(embeddings.embed_documents(TEXTS), documents, atol=1e-5)


def test_prompts_of_the_model():
    """Without given prompts, queries and documents get those of the model, and never its default prompt."""
    settings = {"prompts": {"query": "find: ", "passage": "text: ", "other": "so: "}, "default_prompt_name": "other"}
    with FakeServer([FakeModel(manifest={"settings": settings})]) as server, Client(server.target) as client:
        embeddings = BertlineEmbeddings(client)
        query, (document,) = embeddings.embed_query("owl"), embeddings.embed_documents(["owl"])

    np.testing.assert_allclose([query, document], [vector("find: owl"), vector("text: owl")], atol=1e-6)


def test_a_target_is_enough(served, served_client):
    """Embeddings made from an address and the name of a model have their own client."""
    embeddings = BertlineEmbeddings(target=served.target, model="unit")

    expected = BertlineEmbeddings(served_client, model="unit")
    assert embeddings.embed_query("owl") == expected.embed_query("owl")
    assert asyncio.run(embeddings.aembed_documents(["owl"])) == expected.embed_documents(["owl"])
    embeddings.close()
    expected.close()
    with pytest.raises(ValueError, match="the client is closed"):
        embeddings.embed_query("owl")
    assert expected.embed_query("owl")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give a server"),
        ({"target": "127.0.0.1:1", "client": True}, "not both"),
        ({"token": "t", "client": True}, "not both"),
    ],
)
def test_one_server(served_client, arguments, message):
    """A server is given once."""
    if "client" in arguments:
        arguments = arguments | {"client": served_client}
    with pytest.raises(ValueError, match=message):
        BertlineEmbeddings(**arguments)


def test_long_texts(served_client):
    """Long texts raise InvalidInput, except with `truncate` or `windows`."""
    long = TEXTS[4]

    with pytest.raises(InvalidInput, match="input 0, text"):
        BertlineEmbeddings(served_client, model="plain").embed_documents([long])

    windows = BertlineEmbeddings(served_client, model="plain", windows=True).embed_query(long)
    np.testing.assert_allclose(windows, served_client.embed([long], model="plain", windows=True)[0])


def test_blank_texts_are_refused(served_client):
    """Blank texts raise InvalidInput even with a prompt."""
    embeddings = BertlineEmbeddings(served_client, model="plain", query_prompt="owl: ")

    with pytest.raises(InvalidInput, match="input 0, text: empty text; it needs at least one word"):
        embeddings.embed_query(" ")
