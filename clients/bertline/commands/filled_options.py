"""Commands that refuse empty options: an unset variable of a shell script would count as an option left out."""

from __future__ import annotations

from typing import Any

import typer
import typer.core

MAY_BE_EMPTY = {"prompt_name", "keep", "drop"}
"""Parameters with a special meaning for the empty string: no prompt, and columns without a name."""


class _FilledOptions:
    """Command or group whose own options are not empty."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, and refuse empty options."""
        rest: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
        for param in ctx.command.params:
            source = ctx.get_parameter_source(param.name)
            if (
                param.param_type_name != "option"
                or param.name in MAY_BE_EMPTY
                or not source
                or source.name == "DEFAULT"
            ):
                continue
            value = ctx.params.get(param.name)
            if value == "" or (isinstance(value, list | tuple) and "" in value):
                name = max(param.opts, key=len)
                raise typer.BadParameter(f"{name} is empty; give a value, or leave the option out", ctx=ctx)
        return rest


class Command(_FilledOptions, typer.core.TyperCommand):
    """Command whose options are not empty."""


class Group(_FilledOptions, typer.core.TyperGroup):
    """Group of commands whose own options are not empty."""
