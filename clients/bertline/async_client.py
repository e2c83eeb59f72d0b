"""Client for asyncio, with the methods of Client as coroutines.

from bertline import AsyncClient
async with AsyncClient("127.0.0.1:50051") as client:
    vectors = await client.embed(["one text", "another text"])
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from bertline._async_sender import AsyncSender
from bertline.errors import ModelNotFound
from bertline.operations.answer import answer_call
from bertline.operations.base import InputType
from bertline.operations.choose import choose_call
from bertline.operations.classify import classify_call
from bertline.operations.embed import Pooling, VectorFormat, embed_call
from bertline.operations.embed_sparse import embed_sparse_call
from bertline.operations.embed_tokens import TokenFormat, embed_tokens_call
from bertline.operations.fill_mask import fill_mask_call
from bertline.operations.models import health_call, model_call, models_call
from bertline.operations.regress import regress_call
from bertline.operations.rerank import rerank_call
from bertline.operations.tag import tag_call
from bertline.operations.tokenize import tokenize_call
from bertline.operations.zero_shot import zero_shot_call
from bertline.results import (
    Answer,
    Choice,
    Classification,
    MaskFill,
    Model,
    Ranking,
    SparseVector,
    Tagging,
    Tokenized,
    TokenVectors,
    Usage,
)


class AsyncClient(AsyncSender):
    """Client of one server, for one event loop. Arguments, results and errors are those of `Client`."""

    async def embed(
        self,
        texts: Iterable[str],
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        windows: bool = False,
        window_stride: int | None = None,
        prompt_name: str | None = None,
        input_type: InputType | None = None,
        format: VectorFormat = "float32",
        model: str = "",
        version: str = "",
        truncate: bool | None = None,
        timeout: float | None = None,
        usage: Usage | None = None,
    ) -> np.ndarray:
        """See `Client.embed`."""
        call = embed_call(
            texts,
            model,
            version,
            truncate,
            pooling=pooling,
            normalize=normalize,
            dimensions=dimensions,
            windows=windows,
            window_stride=window_stride,
            prompt_name=prompt_name,
            input_type=input_type,
            format=format,
        )
        return await self._run(call, timeout, usage)

    async def embed_sparse(
        self,
        texts: Iterable[str],
        *,
        top_k: int | None = None,
        return_tokens: bool = False,
        prompt_name: str | None = None,
        input_type: InputType | None = None,
        model: str = "",
        version: str = "",
        truncate: bool | None = None,
        timeout: float | None = None,
        usage: Usage | None = None,
    ) -> list[SparseVector]:
        """See `Client.embed_sparse`."""
        call = embed_sparse_call(
            texts,
            model,
            version,
            truncate,
            top_k=top_k,
            return_tokens=return_tokens,
            prompt_name=prompt_name,
            input_type=input_type,
        )
        return await self._run(call, timeout, usage)

    async def embed_tokens(
        self,
        texts: Iterable[str],
        *,
        input_type: InputType | None = None,
        prompt_name: str | None = None,
        format: TokenFormat = "float32",
        return_offsets: bool = False,
        model: str = "",
        version: str = "",
        truncate: bool | None = None,
        timeout: float | None = None,
        usage: Usage | None = None,
    ) -> list[TokenVectors]:
        """See `Client.embed_tokens`."""
        call = embed_tokens_call(
            texts,
            model,
            version,
            truncate,
            input_type=input_type,
            prompt_name=prompt_name,
            format=format,
            return_offsets=return_offsets,
        )
        return await self._run(call, timeout, usage)

    async def classify(
        self,
        inputs: Iterable[str | tuple[str, str]],
        *,
        top_k: int | None = None,
        model: str = "",
        version: str = "",
        truncate: bool | None = None,
        timeout: float | None = None,
        usage: Usage | None = None,
    ) -> list[Classification]:
        """See `Client.classify`."""
        call = classify_call(inputs, model, version, truncate, top_k=top_k)
        return await self._run(call, timeout, usage)

    async def regress(
        self,
        inputs: Iterable[str | tuple[str, str]],
        *,
        model: str = "",
        version: str = "",
        truncate: bool | None = None,
        timeout: float | None = None,
        usage: Usage | None = None,
    ) -> list[float]:
        """See `Client.regress`."""
        call = regress_call(inputs, model, version, truncate)
        return await self._run(call, timeout, usage)

    async def choose(
        self,
        inputs: Iterable[tuple[str, Sequence[str]] | tuple[str, str, Sequence[str]]],
        *,
        model: str = "",
        version: str = "",
        truncate: bool | None = None,
        timeout: float | None = None,
        usage: Usage | None = None,
    ) -> list[Choice]:
        """See `Client.choose`."""
        call = choose_call(inputs, model, version, truncate)
        return await self._run(call, timeout, usage)

    async def answer(
        self,
        inputs: Iterable[tuple[str, str | Sequence[str]]],
        *,
        top_k: int = 1,
        model: str = "",
        version: str = "",
        truncate: bool | None = None,
        timeout: float | None = None,
        usage: Usage | None = None,
    ) -> list[Answer]:
        """See `Client.answer`."""
        call = answer_call(inputs, model, version, truncate, top_k=top_k)
        return await self._run(call, timeout, usage)

    async def rerank(
        self,
        inputs: Iterable[tuple[str, Sequence[str]]],
        *,
        top_n: int | None = None,
        label: str = "",
        raw_scores: bool = False,
        model: str = "",
        version: str = "",
        truncate: bool | None = None,
        timeout: float | None = None,
        usage: Usage | None = None,
    ) -> list[Ranking]:
        """See `Client.rerank`."""
        call = rerank_call(inputs, model, version, truncate, top_n=top_n, label=label, raw_scores=raw_scores)
        return await self._run(call, timeout, usage)

    async def tag(
        self,
        inputs: Iterable[str | Sequence[str]],
        *,
        return_words: bool = False,
        model: str = "",
        version: str = "",
        truncate: bool | None = None,
        timeout: float | None = None,
        usage: Usage | None = None,
    ) -> list[Tagging]:
        """See `Client.tag`."""
        call = tag_call(inputs, model, version, truncate, return_words=return_words)
        return await self._run(call, timeout, usage)

    async def fill_mask(
        self,
        texts: Iterable[str],
        *,
        top_k: int = 5,
        targets: Iterable[str] = (),
        model: str = "",
        version: str = "",
        truncate: bool | None = None,
        timeout: float | None = None,
        usage: Usage | None = None,
    ) -> list[tuple[MaskFill, ...]]:
        """See `Client.fill_mask`."""
        call = fill_mask_call(texts, model, version, truncate, top_k=top_k, targets=targets)
        return await self._run(call, timeout, usage)

    async def zero_shot(
        self,
        texts: Iterable[str],
        labels: Iterable[str],
        *,
        template: str = "",
        multi_label: bool = False,
        top_k: int | None = None,
        model: str = "",
        version: str = "",
        truncate: bool | None = None,
        timeout: float | None = None,
        usage: Usage | None = None,
    ) -> list[Classification]:
        """See `Client.zero_shot`."""
        call = zero_shot_call(
            texts, labels, model, version, truncate, template=template, multi_label=multi_label, top_k=top_k
        )
        return await self._run(call, timeout, usage)

    async def tokenize(
        self,
        inputs: Iterable[str | tuple[str, str]],
        *,
        model: str = "",
        version: str = "",
        timeout: float | None = None,
    ) -> list[Tokenized]:
        """See `Client.tokenize`."""
        return await self._run(tokenize_call(inputs, model, version), timeout)

    async def models(self, *, timeout: float | None = None) -> list[Model]:
        """See `Client.models`."""
        return await self._run(models_call(), timeout)

    async def model(self, name: str = "", version: str = "", *, timeout: float | None = None) -> Model:
        """See `Client.model`."""
        return await self._run(model_call(name, version), timeout)

    async def health(self, model: str = "", version: str = "", *, timeout: float | None = None) -> bool:
        """See `Client.health`."""
        try:
            return await self._run(health_call(model, version), timeout)
        except ModelNotFound:
            return False
