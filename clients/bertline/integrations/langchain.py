"""LangChain embeddings from a served model (needs langchain-core).

from bertline import Client
from bertline.integrations.langchain import BertlineEmbeddings
embeddings = BertlineEmbeddings(target="127.0.0.1:50051", model="embed")
vector = embeddings.embed_query("Where is the owl?")
"""

from __future__ import annotations

from typing import Any

from langchain_core.embeddings import Embeddings

from bertline.async_client import AsyncClient
from bertline.client import Client
from bertline.integrations._prompts import with_prompt
from bertline.operations.base import InputType


class BertlineEmbeddings(Embeddings):
    """Embeddings of a server, for any LangChain vector store.

    A store must be searched with the model that filled it: give `model` and `version` if the server may load others,
    and `space`, or a client with one, to be sure.
    The caller closes the clients.

    Args:
        client: client for the blocking methods. Without `async_client`, the coroutines use it in a thread.
        async_client: client for the coroutines, in their event loop.
        target: address of the server instead of a client, see `Client`; `close` ends the client that is made for it.
        token: token for that server, if it requires one.
        space: space of the vectors in the store, see `Client`, for that server.
        model: name of the model; empty for the default model of the task `embedding`.
        version: model version; empty for the highest loaded version.
        query_prompt: text to put before queries, for models that were trained with one; empty for the model's own
            prompt for queries, if it has one.
        document_prompt: text to put before documents; empty likewise.
        **options: arguments of `Client.embed`: `normalize`, `dimensions`, `windows`, `window_stride`, `truncate`.
            Without `truncate` or `windows`, texts that are too long raise InvalidInput. If the model was evaluated on
            truncated texts, they are truncated with the warning TextsCut.

    Raises:
        ValueError: if neither a client nor a target is given, or both.
    """

    def __init__(
        self,
        client: Client | None = None,
        async_client: AsyncClient | None = None,
        *,
        target: str | None = None,
        token: str | None = None,
        space: str | None = None,
        model: str = "",
        version: str = "",
        query_prompt: str = "",
        document_prompt: str = "",
        **options: Any,
    ) -> None:
        if (client or async_client) is None and target is None:
            raise ValueError('give a server: BertlineEmbeddings(target="host:port"), or a client')
        if (client or async_client) and (target or token or space):
            raise ValueError("give a client, or a `target` with its `token` and `space`, not both")
        self._own_client = Client(target, token=token, space=space) if target is not None else None
        self._client = client or self._own_client
        self._async_client = async_client
        self._prompts: dict[InputType, str] = {"query": query_prompt, "document": document_prompt}
        self._options = options | {"model": model, "version": version}

    def close(self) -> None:
        """Close the client that was made for `target`, if any. May be called again."""
        if self._own_client:
            self._own_client.close()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors of documents."""
        return self._embed("document", texts)

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a query."""
        return self._embed("query", [text])[0]

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """See `embed_documents`."""
        if self._async_client is None:
            return await super().aembed_documents(texts)
        return await self._aembed(self._async_client, "document", texts)

    async def aembed_query(self, text: str) -> list[float]:
        """See `embed_query`."""
        if self._async_client is None:
            return await super().aembed_query(text)
        return (await self._aembed(self._async_client, "query", [text]))[0]

    def _embed(self, kind: InputType, texts: list[str]) -> list[list[float]]:
        if self._client is None:
            raise ValueError("these embeddings have only an `async_client`: await `aembed_...`, or give a `client`")
        return self._client.embed(with_prompt(self._prompts[kind], texts), **self._options_for(kind)).tolist()

    async def _aembed(self, client: AsyncClient, kind: InputType, texts: list[str]) -> list[list[float]]:
        return (await client.embed(with_prompt(self._prompts[kind], texts), **self._options_for(kind))).tolist()

    def _options_for(self, kind: InputType) -> dict[str, Any]:
        """Return the options of a call; texts with a given prompt get none of the model."""
        return self._options | ({"prompt_name": ""} if self._prompts[kind] else {"input_type": kind})
