"""Operation `fill_mask`: the most likely tokens at each mask."""

from __future__ import annotations

from collections.abc import Iterable

from bertline._convert import Call, Split, join_lists
from bertline._inputs import read_count, read_items, read_option, read_texts
from bertline.operations.base import Operation, check_finite, request_of, scored, sum_of_scores
from bertline.results import MaskFill, TokenScore
from bertline.v1 import encoder_pb2 as pb

MASKS = ("[MASK]", "<mask>")
"""Usual mask tokens."""


def fill_mask_call(
    texts: Iterable[str],
    model: str,
    version: str,
    truncate: bool | None,
    *,
    top_k: int = 5,
    targets: Iterable[str] = (),
) -> Call[list[tuple[MaskFill, ...]]]:
    """See `Client.fill_mask`."""
    request = request_of(
        pb.FillMaskRequest,
        model,
        version,
        truncate,
        top_k=read_count("top_k", top_k),
        targets=[read_option("targets", target) for target in read_items(targets, "targets")],
    )
    return Call("FillMask", Split(read_texts(texts), "texts", request), read_fills, join_lists)


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
    method="fill_mask",
    task="masked-lm",
    call=fill_mask_call,
    of_text=with_mask,
    result=lambda result: {"masks": [scored(mask.tokens) for mask in result]},
    types={"masks": [[{"token": str, "score": float}]]},
)
