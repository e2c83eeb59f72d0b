"""Prompts: texts that a model was trained to read before inputs, by name and by the role of a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tasks.base import TaskSettings

InputType = Literal["query", "document"]
"""Role of a text in a search, for models that treat both kinds differently."""
PROMPT_NAMES: Mapping[InputType, tuple[str, ...]] = {
    "query": ("query",),
    "document": ("document", "passage", "corpus"),
}


@dataclass(frozen=True)
class PromptSettings(TaskSettings):
    """Length and prompts."""

    prompts: Mapping[str, str] = field(default_factory=dict, hash=False, kw_only=True)
    """Texts to put before inputs, by name, for models trained with them."""
    default_prompt_name: str | None = field(default=None, kw_only=True)
    """Prompt of texts for which none is named; None for none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.default_prompt_name is not None:
            self.prompt(self.default_prompt_name)

    def prompt(self, name: str | None) -> str:
        """Return the text of a prompt.

        Args:
            name: name of the prompt; None for the default prompt, empty for none.

        Raises:
            ValueError: if there is no prompt of this name.
        """
        name = self.default_prompt_name if name is None else name
        if name and name not in self.prompts:
            known = ", ".join(self.prompts) or "none"
            raise ValueError(f"unknown prompt: `{name}` (prompts of this model: {known})")
        return self.prompts[name] if name else ""

    def prompt_name_for(self, kind: InputType) -> str:
        """Return the name of the prompt for queries or documents; empty if the model has none.

        Names are those of sentence-transformers, which however prefers its own empty `document` to `passage` and
        `corpus`.
        """
        return next((name for name in PROMPT_NAMES[kind] if name in self.prompts), "")
