"""Operation `embed_tokens`: a vector for each token of each text."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Literal

import numpy as np

from bertline._convert import Call, Split
from bertline._inputs import read_flag, read_texts
from bertline.errors import ServerError
from bertline.operations.base import (
    DTYPES,
    InputType,
    Operation,
    format_field,
    numbers,
    prompt_fields,
    reply_error,
    request_of,
)
from bertline.results import TokenVectors, Usage
from bertline.v1 import encoder_pb2 as pb

TokenFormat = Literal["float32", "float16"]


def embed_tokens(
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
) -> Call[list[TokenVectors]]:
    """Return a vector for each token of each text (ColBERT).

    Args:
        texts: list of texts. A single string raises TypeError.
        input_type: `query` for queries; otherwise texts are documents, whose punctuation has no vectors if the
            model was trained so. Also puts the model's prompt for them before each text, if it has one.
        prompt_name: name of the model's prompt to put before each text instead; None for the one of `input_type`,
            without it for the model's default prompt; empty for none.
        format: `float32` or `float16`.
        return_offsets: also return the place of each token in its text.

    Returns:
        The vectors of each text. Their number differs.
    """
    request = request_of(
        pb.EmbedTokensRequest,
        model,
        version,
        truncate,
        **prompt_fields(prompt_name, input_type),
        format=format_field(format, TokenFormat),
        return_offsets=read_flag("return_offsets", return_offsets),
    )
    read = partial(read_token_vectors, format=format, has_offsets=bool(return_offsets))
    return Call("EmbedTokens", Split(read_texts(texts), "texts", request), read, timeout, usage)


def read_token_vectors(reply: pb.EmbedTokensReply, *, format: TokenFormat, has_offsets: bool) -> list[TokenVectors]:
    """Return one result per text.

    Args:
        format: format that the request asked for.
        has_offsets: True if the request asked for offsets.
    """
    dtype = np.dtype(DTYPES[format])
    width = dtype.itemsize * reply.dim
    found = []
    for result in reply.results:
        if not result.vectors or not width or len(result.vectors) % width:
            raise ServerError(f"the server sent {len(result.vectors)} bytes as {format} vectors of length {reply.dim}")
        vectors = np.frombuffer(result.vectors, dtype=dtype).reshape(-1, reply.dim)
        offsets = np.array([result.starts, result.ends], np.int64).T if has_offsets else None
        found.append(TokenVectors(vectors, offsets))
    if bad := [index for index, item in enumerate(found) if not np.isfinite(item.vectors).all()]:
        raise reply_error(bad, "a vector is not finite")
    return found


OPERATION = Operation(
    call=embed_tokens,
    task="token-embedding",
    result=lambda result: {"vectors": [numbers(vector) for vector in result.vectors]},
    types={"vectors": [[float]]},
)
