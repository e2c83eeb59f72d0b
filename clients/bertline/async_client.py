"""Client for asyncio, with the methods of Client as coroutines.

from bertline import AsyncClient
async with AsyncClient("127.0.0.1:50051") as client:
    vectors = await client.embed(["one text", "another text"])
"""

from __future__ import annotations

from bertline._async_sender import AsyncSender, coroutine
from bertline.errors import ModelNotFound
from bertline.operations.answer import answer as _answer
from bertline.operations.choose import choose as _choose
from bertline.operations.classify import classify as _classify
from bertline.operations.embed import embed as _embed
from bertline.operations.embed_sparse import embed_sparse as _embed_sparse
from bertline.operations.embed_tokens import embed_tokens as _embed_tokens
from bertline.operations.fill_mask import fill_mask as _fill_mask
from bertline.operations.models import health as _health
from bertline.operations.models import model as _model
from bertline.operations.models import models as _models
from bertline.operations.regress import regress as _regress
from bertline.operations.rerank import rerank as _rerank
from bertline.operations.tag import tag as _tag
from bertline.operations.tokenize import tokenize as _tokenize
from bertline.operations.zero_shot import zero_shot as _zero_shot


class AsyncClient(AsyncSender):
    """Client of one server, for one event loop. Arguments, results and errors are those of `Client`."""

    embed = coroutine(_embed)
    embed_sparse = coroutine(_embed_sparse)
    embed_tokens = coroutine(_embed_tokens)
    classify = coroutine(_classify)
    regress = coroutine(_regress)
    choose = coroutine(_choose)
    answer = coroutine(_answer)
    rerank = coroutine(_rerank)
    tag = coroutine(_tag)
    fill_mask = coroutine(_fill_mask)
    zero_shot = coroutine(_zero_shot)
    tokenize = coroutine(_tokenize)
    models = coroutine(_models)
    model = coroutine(_model)

    async def health(self, model: str = "", version: str = "", *, timeout: float | None = None) -> bool:
        """See `Client.health`."""
        try:
            return await self._run(_health(model, version, timeout))
        except ModelNotFound:
            return False
