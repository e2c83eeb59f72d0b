"""Rows of the command's JSONL: out of a line the input, out of a result the row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from bertline._files import read_string
from bertline.results import Answer, Classification, LabelScore, MaskFill, Model, Span, TokenScore


def text_input(row: Mapping[str, Any]) -> str:
    """`text`."""
    return read_string(row, "text")


def text_or_pair_input(row: Mapping[str, Any]) -> str | tuple[str, str]:
    """`text`, with `text_pair` where there is one."""
    text = read_string(row, "text")
    return text if row.get("text_pair") is None else (text, read_string(row, "text_pair"))


def question_input(row: Mapping[str, Any]) -> tuple[str, str]:
    """`question` and `context`."""
    return read_string(row, "question"), read_string(row, "context")


def embedding_row(vector: np.ndarray) -> dict[str, Any]:
    """The row of one text."""
    return {"vector": list(map(float, vector.astype(str).tolist()))}  # as few digits as give the same float32


def classification_row(result: Classification) -> dict[str, Any]:
    """The row of one text or pair."""
    return {"label": result.label, "score": _short(result.score), "labels": _scored(result.labels)}


def answer_row(result: Answer) -> dict[str, Any]:
    """The row of one question."""
    return {
        "answer": result.text,
        "score": _short(result.score),
        "has_answer": result.has_answer,
        "no_answer_score": _short(result.no_answer_score),
        "spans": _scored(result.spans),
    }


def fill_mask_row(result: tuple[MaskFill, ...]) -> dict[str, Any]:
    """The row of one text."""
    return {"masks": [_scored(mask.tokens) for mask in result]}


def model_row(model: Model) -> dict[str, Any]:
    """The row of one model."""
    values = asdict(model)
    del values["manifest_json"]
    return values | {"manifest": model.manifest}


def _scored(items: Iterable[LabelScore | Span | TokenScore]) -> list[dict[str, Any]]:
    return [asdict(item) | {"score": _short(item.score)} for item in items]


def _short(score: float) -> float:
    """A float32 with as few digits as tell it from its neighbours."""
    return float(str(np.float32(score)))
