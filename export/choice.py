"""A form of a graph and how it is run: what is chosen by measurement."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from export.targets import PROVIDER_OPTIONS, TARGETS, Target
from export.variant import Form
from tasks.manifest import Execution, Manifest
from tasks.providers import TENSORRT


@dataclass(frozen=True)
class Choice:
    """A form and how to run it."""

    form: Form
    execution: Execution

    def differences(self, usual: Choice) -> dict[str, Any]:
        """Fields that are not as usual, with their values."""
        own, others = ({**vars(choice.form), **vars(choice.execution)} for choice in (self, usual))
        return {name: value for name, value in own.items() if value != others[name]}

    def changes(self, usual: Choice) -> str:
        """What is not as usual, in words."""
        changes = [f"{name.replace('_', ' ')}: {shown(value)}" for name, value in self.differences(usual).items()]
        return ", ".join(changes) or "default"

    def changed(self, name: str, value: Any) -> Choice:
        """The same with another value of a field of either."""
        if name == "provider":
            execution = replace(self.execution, provider=value, provider_options=PROVIDER_OPTIONS[value])
            return Choice(self.form.as_standard() if value == TENSORRT else self.form, execution)
        if hasattr(self.form, name):
            form = self.form.changed(name, value)
            return replace(self, form=form.as_standard() if self.execution.provider == TENSORRT else form)
        return replace(self, execution=replace(self.execution, **{name: value}))


def shown(value: Any) -> str:
    """A value that is tried, in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def default_choice(target: Target = TARGETS["cpu"]) -> Choice:
    """What is often fast."""
    return Choice(target.form, target.execution)


def choice_of(manifest: Manifest) -> Choice:
    """What was chosen for a model directory."""
    return Choice(Form(**manifest.provenance["graph"]["form"]), manifest.execution)


def session_of(choice: Choice) -> Choice:
    """What makes a session; the cap of batches makes no other."""
    return choice.changed("max_batch_tokens", 1)
