"""Operation `fill_mask`: the most likely tokens at each mask."""

from __future__ import annotations

from collections.abc import Iterable

from bertline._convert import Call, Split
from bertline._inputs import read_count, read_items, read_option, read_texts
from bertline.operations.base import Operation, check_finite, request_of, scored, sum_of_scores
from bertline.results import MaskFill, TokenScore, Usage
from bertline.v1 import encoder_pb2 as pb

MASKS = ("[MASK]", "<mask>")
"""Usual mask tokens."""


def fill_mask(
    texts: Iterable[str],
    *,
    top_k: int = 5,
    targets: Iterable[str] = (),
    model: str = "",
    version: str = "",
    truncate: bool | None = None,
    timeout: float | None = None,
    usage: Usage | None = None,
) -> Call[list[tuple[MaskFill, ...]]]:
    """Return the most likely tokens at each mask.

    Args:
        texts: list of texts, each with at least one mask token of the model: [MASK], or <mask> in RoBERTa and
            similar models. InvalidInput for a text without one names the token.
        top_k: maximum number of tokens per mask.
        targets: tokens of the vocabulary to score in any case.

    Returns:
        For each text, one MaskFill per mask, in the order of the text.
    """
    request = request_of(
        pb.FillMaskRequest,
        model,
        version,
        truncate,
        top_k=read_count("top_k", top_k),
        targets=[read_option("targets", target) for target in read_items(targets, "targets")],
    )
    return Call("FillMask", Split(read_texts(texts), "texts", request), read_fills, timeout, usage)


def read_fills(reply: pb.FillMaskReply) -> list[tuple[MaskFill, ...]]:
    """Return one MaskFill per mask of each text."""
    check_finite(
        sum(sum_of_scores(mask.tokens) + sum_of_scores(mask.targets) for mask in result.masks)
        for result in reply.results
    )
    return [
        tuple(MaskFill(tokens=_scores(mask.tokens), targets=_scores(mask.targets)) for mask in result.masks)
        for result in reply.results
    ]


def _scores(items: Iterable[pb.TokenScore]) -> tuple[TokenScore, ...]:
    return tuple(TokenScore(item.token, item.score) for item in items)


def with_mask(text: str) -> str:
    """Return a text with a mask in its middle, unless it has one."""
    words = text.split()
    words[len(words) // 2] = MASKS[0]
    return text if any(mask in text for mask in MASKS) else " ".join(words)


OPERATION = Operation(
    call=fill_mask,
    task="masked-lm",
    of_text=with_mask,
    result=lambda result: {"masks": [scored(mask.tokens) for mask in result]},
    types={"masks": [[{"token": str, "score": float}]]},
)
