"""Models of a fake server, and the choice of one for a request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from bertline._models import highest_versions
from bertline.operations import OPERATIONS
from bertline.operations.models import read_model_info
from bertline.testing._faults import Refusal
from bertline.v1 import encoder_pb2 as pb

_OPERATIONS = {method.title().replace("_", ""): operation for method, operation in OPERATIONS.items()}
"""Operations by RPC. Any model answers the other RPCs."""
_TASKS = [operation.task for operation in OPERATIONS.values() if not operation.can_do]
State = Literal["loading", "ready", "stale", "failed"]
VOCABULARY_SIZE = 30_000
"""Number of tokens of every model."""
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
    state: State = "ready"
    """Only `ready` and `stale` models answer."""
    error: str = ""
    """Why its directory cannot be loaded."""
    space: str = ""
    """See `bertline.Model.space`."""
    manifest: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.task not in ("", *_TASKS):
            raise ValueError(f"unknown task: `{self.task}` (one of: {', '.join(_TASKS)})")

    def __str__(self) -> str:
        return f"{self.name}/{self.version}"

    @property
    def serves(self) -> bool:
        """True if the model answers."""
        return self.state in ("ready", "stale")

    @property
    def ref(self) -> pb.ModelRef:
        """Name, version and space as a message."""
        return pb.ModelRef(name=self.name, version=self.version, space=self.space)

    def labels_of(self, task: str) -> Sequence[str]:
        """Return the labels for a task."""
        return self.labels or _LABELS.get(task, ())

    def answers(self, method: str, *, is_named: bool) -> bool:
        """Return whether the model answers an RPC; `is_named` is False if the server has to choose it."""
        operation = _OPERATIONS.get(method)
        return not (self.task and operation) or operation.fits(read_model_info(self.info), is_named=is_named)

    @property
    def info(self) -> pb.ModelInfo:
        """Description of the model in ListModels."""
        state = f"MODEL_STATE_{self.state.upper()}"
        if not self.serves:
            return pb.ModelInfo(model=self.ref, state=state, error=self.error)
        manifest: dict[str, Any] = {}
        if self.task == "token-embedding":
            manifest["settings"] = {"normalize": True}
        elif self.multi_label:
            manifest["settings"] = {"problem_type": "multi_label_classification"}
        dim = VOCABULARY_SIZE if self.task == "sparse-embedding" else 0
        if self.task in ("", "embedding", "token-embedding"):
            dim = self.dim
            manifest["small_vectors"] = {"scales": [1 / 127] * dim, "lengths": [1.0] * dim, "losses": {}}
        return pb.ModelInfo(
            model=self.ref,
            task=self.task or "embedding",
            precision="fp32",
            max_seq_length=self.max_seq_length,
            dim=dim,
            labels=self.labels_of(self.task),
            digest="00" * 32,
            manifest_json=json.dumps(manifest | self.manifest),
            state=state,
            error=self.error,
            engine="onnxruntime",
        )


def choose_model(models: Sequence[FakeModel], method: str, ref: pb.ModelRef) -> FakeModel:
    """Return the model for a request: the highest loaded version of the name, or of the only one that answers the RPC.

    Raises:
        Refusal: if there is none.
    """
    loaded = [model for model in models if model.serves]
    listing = ", ".join(map(str, loaded)) or "none"
    names = {model.name for model in highest_versions(loaded) if model.answers(method, is_named=False)}
    if ref.name:
        names = {ref.name}
    if len(names) > 1:
        raise Refusal("INVALID_ARGUMENT", f"several models do {method}; name one (loaded: {listing})")
    versions = [model for model in models if model.name in names and ref.version in ("", model.version)]
    for found in highest_versions(model for model in versions if model.serves):
        if found.answers(method, is_named=True):
            return found
        raise Refusal("INVALID_ARGUMENT", f"{found} does not do {method} (loaded: {listing})")
    for found in versions if ref.name else models:
        if found.state == "loading":
            raise Refusal("UNAVAILABLE", f"`{found}` is being loaded; try again")
        if ref.name:
            raise Refusal("NOT_FOUND", f"`{found}` could not be loaded: {found.error}")
    if ref.name:
        name = "/".join(filter(None, (ref.name, ref.version)))
        raise Refusal("NOT_FOUND", f"model `{name}` does not exist (loaded: {listing})")
    if loaded:
        raise Refusal("INVALID_ARGUMENT", f"no model does {method} (loaded: {listing})")
    raise Refusal("NOT_FOUND", "no model is loaded")
