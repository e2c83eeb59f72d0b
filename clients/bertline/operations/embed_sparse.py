"""Operation `embed_sparse`: weights of tokens of the vocabulary for each text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from bertline._convert import Call, Split, join_lists
from bertline._inputs import read_count, read_flag, read_texts
from bertline.operations.base import InputType, Operation, check_finite, prompt_fields, request_of, short
from bertline.results import SparseVector
from bertline.v1 import encoder_pb2 as pb


def embed_sparse_call(
    texts: Iterable[str],
    model: str,
    version: str,
    truncate: bool | None,
    *,
    top_k: int | None = None,
    return_tokens: bool = False,
    prompt_name: str | None = None,
    input_type: InputType | None = None,
) -> Call[list[SparseVector]]:
    """See `Client.embed_sparse`."""
    request = request_of(
        pb.EmbedSparseRequest,
        model,
        version,
        truncate,
        top_k=read_count("top_k", top_k),
        return_tokens=read_flag("return_tokens", return_tokens),
        **prompt_fields(prompt_name, input_type),
    )
    return Call("EmbedSparse", Split(read_texts(texts), "texts", request), read_sparse_vectors, join_lists)


def read_sparse_vectors(reply: pb.EmbedSparseReply) -> list[SparseVector]:
    """Return one vector per text."""
    vectors = [
        SparseVector(
            np.array(result.indices, np.uint32), np.array(result.values, np.float32), reply.dim, tuple(result.tokens)
        )
        for result in reply.results
    ]
    check_finite(float(vector.values.sum()) for vector in vectors)
    return vectors


def _columns(result: SparseVector) -> dict[str, Any]:
    tokens = {"tokens": list(result.tokens)} if result.tokens else {}
    return {"indices": result.indices.tolist(), "values": [short(value) for value in result.values], **tokens}


OPERATION = Operation(
    method="embed_sparse",
    task="sparse-embedding",
    call=embed_sparse_call,
    result=_columns,
    types={"indices": [int], "values": [float], "tokens": [str]},
)
