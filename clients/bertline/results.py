"""What the methods of the client return."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LabelScore:
    """A label with its probability."""

    label: str
    score: float


@dataclass(frozen=True, slots=True)
class Classification:
    """All labels of the model for one text or pair, likeliest first; the scores sum to 1."""

    labels: tuple[LabelScore, ...]

    @property
    def label(self) -> str:
        """The likeliest label."""
        return self.labels[0].label

    @property
    def score(self) -> float:
        """Probability of the likeliest label."""
        return self.labels[0].score


@dataclass(frozen=True, slots=True)
class Span:
    """context[start:end], with its probability among the candidates. Offsets are code points, as in Python."""

    start: int
    end: int
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The spans of one context that may answer one question."""

    spans: tuple[Span, ...]
    """Best first. Without an answer these are the spans that lost against "no answer"."""
    has_answer: bool
    """False when the model judges that the context does not answer the question."""
    no_answer_score: float
    """Probability of "no answer"; 0 where the model does not know unanswerable questions."""

    @property
    def text(self) -> str:
        """The answer, empty for "no answer"."""
        return self.spans[0].text if self.has_answer else ""

    @property
    def score(self) -> float:
        """Probability of the answer, or of "no answer"."""
        return self.spans[0].score if self.has_answer else self.no_answer_score


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token with its probability over the whole vocabulary."""

    token: str
    score: float


@dataclass(frozen=True, slots=True)
class MaskFill:
    """What fits at one [MASK]."""

    tokens: tuple[TokenScore, ...]
    """Likeliest first."""
    targets: tuple[TokenScore, ...]
    """The `targets` that were asked for, in their order."""


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded model."""

    name: str
    version: str
    task: str
    """`embedding`, `classification`, `spans` or `masked-lm`."""
    precision: str
    """`fp32` or `int8`."""
    max_seq_length: int
    """Longest sequence, in tokens."""
    dim: int
    """Length of the vectors; 0 for other tasks than embedding."""
    labels: tuple[str, ...]
    """In the order of the logits; empty for other tasks than classification."""
    digest: str
    """SHA-256 of model.onnx, hexadecimal."""
    manifest_json: str

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest: provenance, text handling, scores before and after quantisation."""
        return json.loads(self.manifest_json or "{}")
