"""Models of the demo: name, task and training run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DemoModel:
    """Model that the demo serves in fp32 and int8."""

    run: str
    """Run directory of its checkpoint."""
    task: str
    title: str


MODELS = {
    "embed": DemoModel("pretrain", "embedding", "[CLS] vector"),
    "fill-mask": DemoModel("pretrain", "masked-lm", "masked LM"),
    "library": DemoModel("library", "classification", "library"),
    "answer": DemoModel("answer", "spans", "answer"),
}


def served_name(name: str, precision: str) -> str:
    """Return the served name of a model; int8 has no suffix."""
    return name if precision == "int8" else f"{name}-{precision}"
