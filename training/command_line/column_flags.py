"""Spelling of columns as in the client: `--column text=NAME` is the same as `--columns.text NAME`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def expand_column_flags(arguments: Sequence[str]) -> list[str]:
    """Return arguments with `--columns.text NAME` for each `--column text=NAME`.

    Raises:
        ValueError: if a `--column` has no field and name.
    """
    return list(_expand(iter(arguments)))


def _expand(arguments: Iterator[str]) -> Iterator[str]:
    for argument in arguments:
        flag, _, value = argument.partition("=")
        if flag != "--column":
            yield argument
            continue
        value = value or next(arguments, "")
        field, _, name = value.partition("=")
        if not (field and name):
            raise ValueError(f"--column needs a field and the name of a column, such as text=sentence: `{value}`")
        yield f"--columns.{field.replace('_', '-')}"
        yield name
