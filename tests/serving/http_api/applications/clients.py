"""Clients that applications use, unchanged, against the server at $URL. Run by `test_applications.py`."""

import asyncio
import json
import os

import numpy as np
import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient
from langchain_huggingface import HuggingFaceEndpointEmbeddings
from langchain_openai import OpenAIEmbeddings
from llama_index.embeddings.openai_like import OpenAILikeEmbedding

URL, MODEL = os.environ["URL"], os.environ["MODEL"]
EXPECTED = json.loads(os.environ["EXPECTED"])
TEXTS = list(EXPECTED)


def langchain_openai():
    """LangChain's OpenAI embeddings."""
    return OpenAIEmbeddings(model=MODEL, base_url=f"{URL}/v1", api_key="none", check_embedding_ctx_length=False)


def langchain_huggingface():
    """LangChain's Hugging Face embeddings; `model` may not be an address, so its client gets that."""
    embeddings = HuggingFaceEndpointEmbeddings(model="any/name")
    embeddings.client = InferenceClient(model=f"{URL}/tei/{MODEL}")
    embeddings.async_client = AsyncInferenceClient(model=f"{URL}/tei/{MODEL}")
    return embeddings


def check(vectors):
    """Compare directions with those of the Python client."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    assert np.array(vectors) / lengths == pytest.approx(np.array([EXPECTED[text] for text in TEXTS]), abs=1e-6)


@pytest.mark.parametrize("make", [langchain_openai, langchain_huggingface])
def test_langchain(make):
    """LangChain's embeddings of queries and documents are those of the Python client."""
    embeddings = make()

    check(embeddings.embed_documents(TEXTS))
    check([embeddings.embed_query(text) for text in TEXTS])
    check(asyncio.run(make().aembed_documents(TEXTS)))


def test_llama_index():
    """LlamaIndex's OpenAI-like embeddings are those of the Python client, one by one and in batches."""
    embeddings = OpenAILikeEmbedding(model_name=MODEL, api_base=f"{URL}/v1", api_key="none")

    check([embeddings.get_query_embedding(text) for text in TEXTS])
    check(embeddings.get_text_embedding_batch(TEXTS))
    check(asyncio.run(embeddings.aget_text_embedding_batch(TEXTS)))
