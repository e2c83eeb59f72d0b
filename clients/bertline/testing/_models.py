"""Models of a fake server, and the choice of one for a request."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bertline._models import can_rerank, can_zero_shot, highest_versions
from bertline._replies import read_model_info
from bertline.testing._faults import Refusal
from bertline.v1 import encoder_pb2 as pb

TASKS = {
    "Embed": "embedding",
    "EmbedSparse": "sparse-embedding",
    "EmbedTokens": "token-embedding",
    "Classify": "classification",
    "Regress": "regression",
    "Choose": "multiple-choice",
    "Answer": "spans",
    "Tag": "tagging",
    "FillMask": "masked-lm",
}
"""Task that each RPC needs. Any model answers the other RPCs, except Rerank and ZeroShot."""
VOCABULARY_SIZE = 30_000
"""Number of tokens of every model."""
RERANK, ZERO_SHOT = "Rerank", "ZeroShot"
_NAMES = {RERANK: "rerank", ZERO_SHOT: "zero-shot"}
"""Names of RPCs whose models have other tasks."""
_REFUSALS = {RERANK: "rank documents", ZERO_SHOT: "classify by labels of the request"}
_LABELS = {"classification": ("negative", "neutral", "positive"), "tagging": ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")}


@dataclass(frozen=True, kw_only=True)
class FakeModel:
    """Model version of a FakeServer."""

    name: str = "fake"
    version: str = "1"
    task: str = ""
    """See `bertline.Model.task`. Empty: answers every RPC, which no real model does."""
    labels: Sequence[str] = ()
    """Labels of classification and tagging. Empty: default labels."""
    multi_label: bool = False
    """Multi-label classification: labels with a score of at least 0.5 are selected."""
    dim: int = 8
    """Dimension of the vectors."""
    max_seq_length: int = 512
    """Maximum length in tokens. The fake tokenizer makes a token of each word and punctuation mark."""
    state: str = "ready"
    """`loading`, `ready`, `stale` or `failed`. Only `ready` and `stale` models answer."""
    error: str = ""
    """Why its directory cannot be loaded."""
    manifest: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.task and self.task not in TASKS.values():
            raise ValueError(f"unknown task: `{self.task}` (one of: {', '.join(TASKS.values())})")
        if not re.fullmatch(r"[1-9]\d*", self.version, re.ASCII):
            raise ValueError(f"a version must be a whole number of at least 1: `{self.version}`")
        if self.state not in ("loading", "ready", "stale", "failed"):
            raise ValueError(f"unknown state: `{self.state}` (one of: loading, ready, stale, failed)")

    def __str__(self) -> str:
        return f"{self.name}/{self.version}"

    @property
    def serves(self) -> bool:
        """True if the model answers."""
        return self.state in ("ready", "stale")

    @property
    def ref(self) -> pb.ModelRef:
        """Name and version as a message."""
        return pb.ModelRef(name=self.name, version=self.version)

    def labels_for(self, task: str) -> Sequence[str]:
        """Return the labels for a task."""
        return self.labels or _LABELS.get(task, ())

    @property
    def _settings(self) -> dict[str, Any]:
        if self.task == "token-embedding":
            return {"settings": {"normalize": True}}
        return {"settings": {"problem_type": "multi_label_classification"}} if self.multi_label else {}

    @property
    def _small_vectors(self) -> dict[str, Any]:
        """Scales of int8 vectors, as `_answers.embed` uses them."""
        if self.task not in ("", "embedding"):
            return {}
        return {"small_vectors": {"scales": [1 / 127] * self.dim, "lengths": [1.0] * self.dim, "losses": {}}}

    @property
    def _info_dim(self) -> int:
        """Dimension of the vectors in ListModels."""
        if self.task == "sparse-embedding":
            return VOCABULARY_SIZE
        return self.dim if self.task in ("", "embedding", "token-embedding") else 0

    @property
    def info(self) -> pb.ModelInfo:
        """Description of the model in ListModels."""
        state = f"MODEL_STATE_{self.state.upper()}"
        if not self.serves:
            return pb.ModelInfo(model=self.ref, state=state, error=self.error)
        return pb.ModelInfo(
            model=self.ref,
            task=self.task or "embedding",
            precision="fp32",
            max_seq_length=self.max_seq_length,
            dim=self._info_dim,
            labels=self.labels_for(self.task),
            digest="00" * 32,
            manifest_json=json.dumps(self._settings | self._small_vectors | self.manifest),
            state=state,
            error=self.error,
            engine="onnxruntime",
        )


def choose_model(models: Sequence[FakeModel], method: str, ref: pb.ModelRef) -> FakeModel:
    """Return the model for a request, chosen as a real server does.

    Raises:
        Refusal: if there is none.
    """
    task, loaded = _task(method), [model for model in models if model.serves]
    name = ref.name or _only_name(models, method)
    versions = [model for model in models if model.name == name and ref.version in ("", model.version)]
    for found in sorted(versions, key=_rank, reverse=True):
        if not found.serves:
            continue
        if _fits(found, method, is_named=True):
            return found
        if method in _REFUSALS:
            reason = f"{found} cannot {_REFUSALS[method]}"
            raise Refusal("INVALID_ARGUMENT", reason, [("model", reason)])
        raise Refusal("INVALID_ARGUMENT", f"{found} does not support the task `{task}` (loaded: {_listing(loaded)})")
    _refuse_loading(versions)
    if versions:
        found = max(versions, key=_rank)
        raise Refusal("NOT_FOUND", f"`{found}` could not be loaded: {found.error}")
    if name in {model.name for model in models}:
        raise Refusal("NOT_FOUND", f"model `{name}` has no version `{ref.version}` (loaded: {_listing(loaded)})")
    raise Refusal("NOT_FOUND", f"model `{name}` does not exist (loaded: {_listing(loaded)})")


def _task(method: str) -> str:
    """Return the task of an RPC, as messages name it; empty if any model will do."""
    return _NAMES.get(method, TASKS.get(method, ""))


def _fits(model: FakeModel, method: str, *, is_named: bool) -> bool:
    """Return whether a model answers an RPC; `is_named` is False if the server has to choose it."""
    if not model.task or not _task(method):
        return True
    if method == RERANK:
        return can_rerank(read_model_info(model.info), is_named)
    return can_zero_shot(read_model_info(model.info)) if method == ZERO_SHOT else model.task == TASKS[method]


def _only_name(models: Sequence[FakeModel], method: str) -> str:
    task, loaded = _task(method), [model for model in models if model.serves]
    found = [model for model in highest_versions(loaded) if _fits(model, method, is_named=False)]
    if len(found) == 1:
        return found[0].name
    if found:
        of_task = f" for the task `{task}`" if task else ""
        raise Refusal("INVALID_ARGUMENT", f"several models are loaded{of_task}; name one: {_listing(found)}")
    _refuse_loading(models)
    if not loaded:
        raise Refusal("NOT_FOUND", "no model is loaded")
    raise Refusal("INVALID_ARGUMENT", f"no model does this task: `{task}` (loaded: {_listing(loaded)})")


def _refuse_loading(models: Sequence[FakeModel]) -> None:
    for model in models:
        if model.state == "loading":
            raise Refusal("UNAVAILABLE", f"`{model}` is being loaded; try again")


def _rank(model: FakeModel) -> tuple[int, str]:
    """Return a sort key that orders versions as numbers."""
    return len(model.version), model.version


def _listing(models: Sequence[FakeModel]) -> str:
    return ", ".join(map(str, models)) or "none"
