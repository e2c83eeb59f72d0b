"""Commands that refuse empty options: an unset variable of a shell script would count as an option left out."""

from __future__ import annotations

from typing import Any

import typer
import typer.core

MAY_BE_EMPTY = {"prompt_name", "keep", "drop"}
"""Parameters with a special meaning for the empty string: no prompt, and columns without a name."""


class Command(typer.core.TyperCommand):
    """Command whose options are not empty."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments of the command."""
        rest: list[str] = super().parse_args(ctx, args)
        _refuse_empty(ctx)
        return rest


class Group(typer.core.TyperGroup):
    """Group of commands whose own options are not empty."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments before the command."""
        rest: list[str] = super().parse_args(ctx, args)
        _refuse_empty(ctx)
        return rest


def _refuse_empty(context: Any) -> None:
    for param in context.command.params:
        source = context.get_parameter_source(param.name)
        if param.param_type_name != "option" or param.name in MAY_BE_EMPTY or not source or source.name == "DEFAULT":
            continue
        value = context.params.get(param.name)
        if value == "" or (isinstance(value, list | tuple) and "" in value):
            name = max(param.opts, key=len)
            raise typer.BadParameter(f"{name} is empty; give a value, or leave the option out", ctx=context)
