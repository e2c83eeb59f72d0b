"""The models of the demo: what they are called, what they do, and where they come from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DemoModel:
    """A model that the demo serves, as fp32 and as int8."""

    run: str
    """Run directory whose checkpoint it is."""
    task: str
    title: str


MODELS = {
    "embed": DemoModel("pretrain", "embedding", "[CLS] vector"),
    "fill-mask": DemoModel("pretrain", "masked-lm", "masked LM"),
    "library": DemoModel("library", "classification", "library"),
    "answer": DemoModel("answer", "spans", "answer"),
}


def served_name(name: str, precision: str) -> str:
    """Name under which a model is served: int8 has the plain one."""
    return name if precision == "int8" else f"{name}-{precision}"
