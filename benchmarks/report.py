"""Tables of a benchmark of several parts, as JSON and Markdown."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tasks.bundle.files import atomic_write
from training.reports.tables import markdown_table


@dataclass(frozen=True)
class Table:
    """Table of measurements."""

    title: str
    rows: list[dict[str, Any]]
    """Cells by name of the column; at least one row. All rows have the columns of the first, in its order."""
    note: str = ""


@dataclass
class Part:
    """Results of one part."""

    tables: list[Table] = field(default_factory=list)
    seconds: float = 0.0
    error: str = ""
    """One line; empty if the part came to its end."""


def run_parts(parts: Mapping[Any, Callable[[], Iterator[Table]]], machine: Mapping[str, Any], out: Path) -> None:
    """Run parts one after the other, write the report after each table, and exit with 1 if a part failed.

    An error ends a part, not the others: whatever it is, they are still worth their time.

    Args:
        parts: functions by name.
        machine: facts for the head of the report.
        out: path of the report without extension.
    """
    found: dict[str, Part] = {}
    for name, run in parts.items():
        print(f"{name} ...", flush=True)
        part, started = found.setdefault(name, Part()), time.monotonic()
        try:
            for table in run():
                part.tables.append(table)
                write_report(out, machine, found)
        except Exception as error:
            if not isinstance(error, ValueError | OSError):
                traceback.print_exc()
            part.error = (str(error) or type(error).__name__).splitlines()[0]
        part.seconds = time.monotonic() - started
        write_report(out, machine, found)
        print(to_markdown({}, {name: part}), flush=True)
    if failed := [name for name, part in found.items() if part.error]:
        sys.exit(f"error: failed: {', '.join(failed)}; `{out}.md` has the rest")
    print(f"written: {out}.md, {out}.json")


def write_report(out: Path, machine: Mapping[str, Any], parts: Mapping[str, Part]) -> None:
    """Write the report as `.json` and `.md`, atomically.

    Args:
        out: path without extension.
    """
    found = {"machine": dict(machine), "parts": {name: asdict(part) for name, part in parts.items()}}
    atomic_write(out.with_suffix(".json"), (json.dumps(found, indent=2, ensure_ascii=False) + "\n").encode())
    atomic_write(out.with_suffix(".md"), to_markdown(machine, parts).encode())


def to_markdown(machine: Mapping[str, Any], parts: Mapping[str, Part]) -> str:
    """Return the report for people."""
    lines = [", ".join(f"{name} {value}" for name, value in machine.items())]
    for name, part in parts.items():
        lines.append(f"\n## {name} ({part.seconds:.0f} s)")
        for table in part.tables:
            names = list(table.rows[0]) if table.rows else ["nothing measured"]
            rows = [names, *([_cell(row.get(name, "")) for name in names] for row in table.rows)]
            lines += ["", table.title, "", markdown_table(rows), *(["", table.note] if table.note else [])]
        if part.error:
            lines += ["", f"Failed: {part.error}"]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
