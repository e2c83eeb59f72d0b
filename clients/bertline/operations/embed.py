"""Operation `embed`: a vector for each text."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Literal

import numpy as np

from bertline._convert import Call, Split, join_vectors
from bertline._inputs import read_count, read_flag, read_texts
from bertline.errors import ServerError
from bertline.operations.base import (
    DTYPES,
    InputType,
    Operation,
    check_choice,
    format_field,
    numbers,
    prompt_fields,
    reply_error,
    request_of,
)
from bertline.results import Usage
from bertline.v1 import encoder_pb2 as pb

VectorFormat = Literal["float32", "float16", "int8", "binary"]
Pooling = Literal["cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]


def embed(
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
) -> Call[np.ndarray]:
    """Return one vector per text.

    Args:
        texts: list of texts. A single string raises TypeError.
        pooling: `cls`, `mean` or another name of `Pooling`: raise InvalidInput if the model uses another one.
        normalize: divide each vector by its Euclidean norm; None for the model's own setting.
        dimensions: keep only the first numbers of each vector, for models trained for this (Matryoshka).
        windows: split texts that are too long into windows, each with the prompt, and average their vectors
            weighted by tokens.
        window_stride: tokens from the start of one window to the start of the next; None for no overlap.
        prompt_name: name of the model's prompt to put before each text, see `settings` of `Model.manifest`;
            None for the model's default prompt, if it has one; empty for none.
        input_type: `query` or `document`: put the model's prompt for them before each text, if it has one.
        format: `float32`; `float16`; `int8`, each number divided by the scale of its dimension, see
            `Model.int8_scales`; or `binary`, the signs packed into bits as by numpy.packbits.

    Returns:
        [texts, dim] in the format; binary: [texts, bytes for dim bits] uint8. [0, 0] for no texts.
    """
    if pooling is not None:
        check_choice("pooling", pooling, Pooling)
    request = request_of(
        pb.EmbedRequest,
        model,
        version,
        truncate,
        pooling=f"POOLING_{pooling.upper()}" if pooling else None,
        normalize=read_flag("normalize", normalize),
        dimensions=read_count("dimensions", dimensions),
        windows=read_flag("windows", windows),
        window_stride=read_count("window_stride", window_stride),
        **prompt_fields(prompt_name, input_type),
        format=format_field(format, VectorFormat),
    )
    read = partial(read_vectors, normalized=bool(normalize), format=format)
    join = partial(join_vectors, dtype=DTYPES[format])
    return Call("Embed", Split(read_texts(texts), "texts", request), read, timeout, usage, join)


def read_vectors(reply: pb.EmbedReply, *, normalized: bool, format: VectorFormat) -> np.ndarray:
    """Return the vectors, [n, dim], as a view of the reply's bytes; binary: [n, bytes for dim bits].

    Args:
        reply: reply of Embed.
        normalized: True if vectors of length 1 were requested.
        format: requested format.

    Raises:
        ServerError: for a wrong number of bytes, and for vectors that are not finite or have no direction.
    """
    width = -(-reply.dim // 8) if format == "binary" else reply.dim
    dtype = np.dtype(DTYPES[format])
    if not reply.dim or len(reply.vectors) % (dtype.itemsize * width):
        raise ServerError(f"the server sent {len(reply.vectors)} bytes as {format} vectors of length {reply.dim}")
    vectors = np.frombuffer(reply.vectors, dtype=dtype).reshape(-1, width)
    if dtype.kind != "f":
        return vectors
    are_finite = np.isfinite(vectors)
    if not are_finite.all():
        raise reply_error(np.flatnonzero(~are_finite.all(axis=1)).tolist(), "the vector is not finite")
    if normalized and not (are_nonzero := vectors.any(axis=1)).all():
        raise reply_error(np.flatnonzero(~are_nonzero).tolist(), "the vector is all zeros and cannot have length 1")
    return vectors


VECTOR = "vector"

OPERATION = Operation(
    call=embed,
    task="embedding",
    result=lambda vector: {VECTOR: numbers(vector)},
    types={VECTOR: [float]},  # in Parquet, the job decides
)
