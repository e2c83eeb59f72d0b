"""Replies of the RPCs as the JSON of Text Embeddings Inference. Threads call these functions: replies may be large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import islice
from typing import Any

import numpy as np
import orjson

from bertline.v1 import encoder_pb2 as pb

BLOCK_TOKENS = 1024
"""Number of tokens of `/tokenize` that are written in one step, which holds the interpreter lock."""


def embed_json(data: bytes) -> bytes:
    """Return the vectors of a serialised EmbedReply."""
    reply = pb.EmbedReply.FromString(data)
    return _dumps(list(np.frombuffer(reply.vectors, "<f4").reshape(-1, reply.dim or 1)))


def sparse_json(data: bytes) -> bytes:
    """Return the weights of a serialised EmbedSparseReply in the order of their ids."""
    return _dumps(
        [
            [
                {"index": index, "value": value}
                for index, value in sorted(zip(result.indices, result.values, strict=True))
            ]
            for result in pb.EmbedSparseReply.FromString(data).results
        ]
    )


def token_vectors_json(data: bytes) -> bytes:
    """Return the vectors of a serialised EmbedTokensReply."""
    reply = pb.EmbedTokensReply.FromString(data)
    return _dumps([np.frombuffer(item.vectors, "<f4").reshape(-1, reply.dim) for item in reply.results])


def classify_json(several: bool, data: bytes) -> bytes:
    """Return the labels of a serialised ClassifyReply; those of the only input without a list around them."""
    found = [
        [{"score": item.score, "label": item.label} for item in result.labels]
        for result in pb.ClassifyReply.FromString(data).results
    ]
    return _dumps(found if several else found[0])


def regress_json(several: bool, data: bytes) -> bytes:
    """Return the numbers of a serialised RegressReply as scores of one label, as `classify_json`."""
    found = [[{"score": value, "label": "LABEL_0"}] for value in pb.RegressReply.FromString(data).values]
    return _dumps(found if several else found[0])


def rerank_json(texts: Sequence[str] | None, data: bytes) -> bytes:
    """Return the ranking of a serialised RerankReply for one query, with the texts if they are given."""
    return _dumps(
        [
            {"index": item.document, "score": item.score} | ({} if texts is None else {"text": texts[item.document]})
            for item in pb.RerankReply.FromString(data).results[0].documents
        ]
    )


def tokenize_json(with_special: bool, data: bytes) -> bytes:
    """Return the tokens of a serialised TokenizeReply."""
    file = BytesIO()  # returns its content without a copy
    file.write(b"[")
    for index, item in enumerate(pb.TokenizeReply.FromString(data).results):
        file.write(b",[" if index else b"[")
        tokens, comma = _tokens(item, with_special), b""
        while block := list(islice(tokens, BLOCK_TOKENS)):
            file.write(comma + orjson.dumps(block)[1:-1])
            comma = b","
        file.write(b"]")
    file.write(b"]")
    return file.getvalue()


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


def _dumps(values: Any) -> bytes:
    return orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)
