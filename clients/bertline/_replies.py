"""Server replies -> results of the client."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from bertline.errors import InvalidItem, ServerError
from bertline.results import (
    Answer,
    Choice,
    Classification,
    Entity,
    LabelScore,
    MaskFill,
    Model,
    RankedDocument,
    Ranking,
    Span,
    SparseVector,
    TaggedWord,
    Tagging,
    Tokenized,
    TokenScore,
    TokenVectors,
)
from bertline.v1 import encoder_pb2 as pb

DTYPES = {"float32": "<f4", "float16": "<f2", "int8": "i1", "binary": "u1"}
"""Types of the numbers of vectors by format."""


_FORMATS = {
    pb.VECTOR_FORMAT_UNSPECIFIED: "float32",
    pb.VECTOR_FORMAT_FLOAT16: "float16",
    pb.VECTOR_FORMAT_INT8: "int8",
    pb.VECTOR_FORMAT_BINARY: "binary",
}


def read_vectors(reply: pb.EmbedReply, *, normalized: bool = False, format: str = "float32") -> np.ndarray:
    """Return the vectors, [n, dim], as a view of the reply's bytes; binary: [n, bytes for dim bits].

    Args:
        reply: reply of Embed.
        normalized: True if vectors of length 1 were requested.
        format: requested format.

    Raises:
        ServerError: for another format or a wrong number of bytes, and for vectors that are not finite or have no
            direction.
    """
    _check_format(reply, format)
    width = -(-reply.dim // 8) if format == "binary" else reply.dim
    dtype = np.dtype(DTYPES[format])
    if not reply.dim or len(reply.vectors) % (dtype.itemsize * width):
        raise ServerError(f"the server sent {len(reply.vectors)} bytes as {format} vectors of length {reply.dim}")
    vectors = np.frombuffer(reply.vectors, dtype=dtype).reshape(-1, width)
    if dtype.kind != "f":
        return vectors
    are_finite = np.isfinite(vectors)
    if not are_finite.all():
        raise _error(np.flatnonzero(~are_finite.all(axis=1)).tolist(), "the vector is not finite")
    if normalized and not (are_nonzero := vectors.any(axis=1)).all():
        raise _error(np.flatnonzero(~are_nonzero).tolist(), "the vector is all zeros and cannot have length 1")
    return vectors


def _check_format(reply: Any, format: str) -> None:
    """Raise ServerError if vectors have another format than was asked for."""
    sent = _FORMATS.get(reply.format, f"unknown format {reply.format}")
    if sent != format:
        raise ServerError(f"the server sent vectors as {sent}, not as {format}; older servers know float32 only")


def read_sparse_vectors(reply: pb.EmbedSparseReply) -> list[SparseVector]:
    """Return one vector per text."""
    for result in reply.results:
        num_tokens = len(result.tokens) or len(result.indices)
        if not len(result.indices) == len(result.values) == num_tokens:
            raise ServerError("the server sent lists of different lengths for the weights of one text")
    vectors = [
        SparseVector(
            np.array(result.indices, np.uint32), np.array(result.values, np.float32), reply.dim, tuple(result.tokens)
        )
        for result in reply.results
    ]
    _check_finite(float(vector.values.sum()) for vector in vectors)
    return vectors


def read_token_vectors(reply: pb.EmbedTokensReply, *, format: str, has_offsets: bool) -> list[TokenVectors]:
    """Return one result per text.

    Args:
        format: format that the request asked for.
        has_offsets: True if the request asked for offsets.
    """
    dtype = np.dtype(DTYPES[format])
    _check_format(reply, format)
    width = dtype.itemsize * reply.dim
    found = []
    for result in reply.results:
        if not result.vectors or not width or len(result.vectors) % width:
            raise ServerError(f"the server sent {len(result.vectors)} bytes as {format} vectors of length {reply.dim}")
        vectors = np.frombuffer(result.vectors, dtype=dtype).reshape(-1, reply.dim)
        if has_offsets and not len(result.starts) == len(result.ends) == len(vectors):
            raise ServerError("the server sent other numbers of offsets than of vectors")
        offsets = np.array([result.starts, result.ends], np.int64).T if has_offsets else None
        found.append(TokenVectors(vectors, offsets))
    if bad := [index for index, item in enumerate(found) if not np.isfinite(item.vectors).all()]:
        raise _error(bad, "a vector is not finite")
    return found


def read_classifications(reply: pb.ClassifyReply) -> list[Classification]:
    """Return one result per input."""
    if not all(result.labels for result in reply.results):
        raise ServerError("the server sent a classification without labels")
    _check_finite(_sum_of_scores(result.labels) for result in reply.results)
    is_old = reply.problem_type == pb.PROBLEM_TYPE_UNSPECIFIED  # single-label models only, and no `selected`
    return [
        Classification(
            labels=tuple(
                LabelScore(item.label, item.score, item.selected or (is_old and not rank))
                for rank, item in enumerate(result.labels)
            ),
            multi_label=reply.problem_type == pb.PROBLEM_TYPE_MULTI_LABEL,
        )
        for result in reply.results
    ]


def read_zero_shot(reply: pb.ZeroShotReply, *, multi_label: bool) -> list[Classification]:
    """Return one result per text."""
    kind = pb.PROBLEM_TYPE_MULTI_LABEL if multi_label else pb.PROBLEM_TYPE_SINGLE_LABEL
    return read_classifications(pb.ClassifyReply(results=reply.results, problem_type=kind))


def read_values(reply: pb.RegressReply) -> list[float]:
    """Return one result per input."""
    _check_finite(reply.values)
    return list(reply.values)


def read_choice_results(reply: pb.ChooseReply) -> list[Choice]:
    """Return one result per input."""
    for result in reply.results:
        if result.choice >= len(result.scores):
            raise ServerError(f"the server chose index {result.choice} of {len(result.scores)} choices")
    _check_finite(sum(result.scores) for result in reply.results)
    return [Choice(result.choice, tuple(result.scores)) for result in reply.results]


def read_taggings(reply: pb.TagReply) -> list[Tagging]:
    """Return one result per input."""
    _check_finite(_sum_of_scores(result.entities) + _sum_of_scores(result.words) for result in reply.results)
    return [
        Tagging(
            entities=tuple(Entity(item.start, item.end, item.text, item.label, item.score) for item in result.entities),
            words=tuple(TaggedWord(word.start, word.end, word.tag, word.score) for word in result.words),
        )
        for result in reply.results
    ]


def read_tokenized(reply: pb.TokenizeReply) -> list[Tokenized]:
    """Return one result per input."""
    for result in reply.results:
        fields = (result.ids, result.tokens, result.starts, result.ends, result.type_ids, result.special)
        if len(set(map(len, fields))) > 1:
            raise ServerError("the server sent lists of different lengths for the tokens of one input")
    return [
        Tokenized(
            ids=tuple(result.ids),
            tokens=tuple(result.tokens),
            offsets=tuple(zip(result.starts, result.ends, strict=True)),
            type_ids=tuple(result.type_ids),
            special=tuple(result.special),
        )
        for result in reply.results
    ]


def read_answers(reply: pb.AnswerReply) -> list[Answer]:
    """Return one result per input."""
    if any(result.has_answer and not result.spans for result in reply.results):
        raise ServerError("the server sent an answer without a span")
    _check_finite(_sum_of_scores(result.spans) + result.no_answer_score for result in reply.results)
    return [
        Answer(
            spans=tuple(Span(span.start, span.end, span.text, span.score, span.context) for span in result.spans),
            has_answer=result.has_answer,
            no_answer_score=result.no_answer_score,
        )
        for result in reply.results
    ]


def read_ranked(reply: pb.RerankReply) -> list[Ranking]:
    """Return one result per input."""
    _check_finite(_sum_of_scores(result.documents) for result in reply.results)
    return [
        Ranking(tuple(RankedDocument(item.document, item.score) for item in result.documents))
        for result in reply.results
    ]


def merge_rankings(before: Ranking, further: Ranking, first: int, *, top_n: int) -> Ranking:
    """Return one ranking of documents that two requests hold.

    Args:
        before: ranking of the documents before `first`.
        further: ranking of the documents from there on, counted from 0.
        first: position of the first of them.
        top_n: maximum number of documents; 0 for all.
    """
    moved = (RankedDocument(item.document + first, item.score) for item in further.documents)
    ranked = sorted([*before.documents, *moved], key=lambda item: (-item.score, item.document))
    return Ranking(tuple(ranked[: top_n or None]))


def read_fills(reply: pb.FillMaskReply) -> list[tuple[MaskFill, ...]]:
    """Return one MaskFill per mask of each text."""
    _check_finite(
        sum(_sum_of_scores(mask.tokens) + _sum_of_scores(mask.targets) for mask in result.masks)
        for result in reply.results
    )
    return [
        tuple(MaskFill(tokens=_tokens(mask.tokens), targets=_tokens(mask.targets)) for mask in result.masks)
        for result in reply.results
    ]


def _tokens(items: Iterable[pb.TokenScore]) -> tuple[TokenScore, ...]:
    return tuple(TokenScore(item.token, item.score) for item in items)


def _sum_of_scores(items: Iterable[Any]) -> float:
    return sum(item.score for item in items)


def _check_finite(sums: Iterable[float]) -> None:
    """Raise ServerError if a sum of scores is not finite. Each input has one sum."""
    if bad := [index for index, value in enumerate(sums) if not math.isfinite(value)]:
        raise _error(bad, "a score is not finite")


def _error(indices: Iterable[int], reason: str) -> ServerError:
    """Return the error for inputs without a usable reply."""
    return ServerError.of([InvalidItem(index, "reply", reason) for index in indices])


_STATES = {
    pb.MODEL_STATE_LOADING: "loading",
    pb.MODEL_STATE_READY: "ready",
    pb.MODEL_STATE_STALE: "stale",
    pb.MODEL_STATE_FAILED: "failed",
}


def read_model_info(info: pb.ModelInfo) -> Model:
    """Return a version of a model."""
    return Model(
        name=info.model.name,
        version=info.model.version,
        task=info.task,
        precision=info.precision,
        max_seq_length=info.max_seq_length,
        dim=info.dim,
        labels=tuple(info.labels),
        digest=info.digest,
        manifest_json=info.manifest_json,
        state=_STATES.get(info.state, ""),
        error=info.error,
        engine=info.engine,
    )
