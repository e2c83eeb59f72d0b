"""Operation `embed_sparse`: weights of tokens of the vocabulary for each text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from bertline._convert import Call, Split
from bertline._inputs import read_count, read_flag, read_texts
from bertline.operations.base import InputType, Operation, check_finite, prompt_fields, request_of, short
from bertline.results import SparseVector, Usage
from bertline.v1 import encoder_pb2 as pb


def embed_sparse(
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
) -> Call[list[SparseVector]]:
    """Return weights of tokens of the vocabulary for each text (SPLADE).

    Args:
        texts: list of texts. A single string raises TypeError.
        top_k: maximum number of weights per text, the largest ones; None for the model's own number, `top_k` in
            `settings` of `Model.manifest`.
        return_tokens: also return the tokens, not only their ids.
        prompt_name: name of the model's prompt to put before each text; None for the model's default prompt, if it
            has one; empty for none.
        input_type: `query` or `document`: put the model's prompt for them before each text, if it has one.

    Returns:
        One sparse vector per text.
    """
    request = request_of(
        pb.EmbedSparseRequest,
        model,
        version,
        truncate,
        top_k=read_count("top_k", top_k),
        return_tokens=read_flag("return_tokens", return_tokens),
        **prompt_fields(prompt_name, input_type),
    )
    return Call("EmbedSparse", Split(read_texts(texts), "texts", request), read_sparse_vectors, timeout, usage)


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
    call=embed_sparse,
    task="sparse-embedding",
    result=_columns,
    types={"indices": [int], "values": [float], "tokens": [str]},
)
