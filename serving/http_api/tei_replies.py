"""Replies of the RPCs as the JSON of Text Embeddings Inference. Threads call these functions: replies may be large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bertline.v1 import encoder_pb2 as pb
from serving.http_api.json_reply import dumps, join, list_parts

BLOCK_TOKENS = 1024
"""Number of tokens of `/tokenize` that are written in one step, which holds the interpreter lock."""


def embed_json(data: bytes) -> bytes:
    """Return the vectors of a serialised EmbedReply."""
    reply = pb.EmbedReply.FromString(data)
    return join(list_parts(np.frombuffer(reply.vectors, "<f4").reshape(-1, reply.dim or 1), 16))


def sparse_json(data: bytes) -> bytes:
    """Return the weights of a serialised EmbedSparseReply in the order of their ids."""
    return join(
        list_parts(
            [
                {"index": index, "value": value}
                for index, value in sorted(zip(result.indices, result.values, strict=True))
            ]
            for result in pb.EmbedSparseReply.FromString(data).results
        )
    )


def token_vectors_json(data: bytes) -> bytes:
    """Return the vectors of a serialised EmbedTokensReply."""
    reply = pb.EmbedTokensReply.FromString(data)
    return join(list_parts(np.frombuffer(item.vectors, "<f4").reshape(-1, reply.dim) for item in reply.results))


def classify_json(several: bool, data: bytes) -> bytes:
    """Return the labels of a serialised ClassifyReply; those of the only input without a list around them."""
    found = (
        [{"score": item.score, "label": item.label} for item in result.labels]
        for result in pb.ClassifyReply.FromString(data).results
    )
    return join(list_parts(found, 16)) if several else dumps(next(found))


def regress_json(several: bool, data: bytes) -> bytes:
    """Return the numbers of a serialised RegressReply as scores of one label, as `classify_json`."""
    found = [[{"score": value, "label": "LABEL_0"}] for value in pb.RegressReply.FromString(data).values]
    return dumps(found if several else found[0])


def rerank_json(texts: Sequence[str] | None, data: bytes) -> bytes:
    """Return the ranking of a serialised RerankReply for one query, with the texts if they are given."""
    found = (
        {"index": item.document, "score": item.score} | ({} if texts is None else {"text": texts[item.document]})
        for item in pb.RerankReply.FromString(data).results[0].documents
    )
    return join(list_parts(found, 16))


def tokenize_json(with_special: bool, data: bytes) -> bytes:
    """Return the tokens of a serialised TokenizeReply."""
    return join(_inputs_parts(pb.TokenizeReply.FromString(data), with_special))


def _inputs_parts(reply: pb.TokenizeReply, with_special: bool) -> Iterator[bytes]:
    yield b"["
    for index, item in enumerate(reply.results):
        if index:
            yield b","
        yield from list_parts(_tokens(item, with_special), BLOCK_TOKENS)
    yield b"]"


def _tokens(item: pb.TokenizedInput, with_special: bool) -> Iterator[dict[str, Any]]:
    rows = zip(item.ids, item.tokens, item.special, item.starts, item.ends, strict=True)
    return (
        {
            "id": token_id,
            "text": token,
            "special": special,
            "start": None if special else start,
            "stop": None if special else end,
        }
        for token_id, token, special, start, end in rows
        if with_special or not special
    )
