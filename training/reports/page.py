"""HTML page of a report: sections of notes, tables and curves, without scripts and network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup


@dataclass(frozen=True)
class Cell:
    """Part of a table that stands out."""

    text: str
    mark: str = ""
    """`right`, `near`, `wrong` or `gold` for a coloured text; `strong` or `soft` for emphasis."""
    fraction: float | None = None
    """Length of the bar below the text, from 0 to 1."""


Content = str | Cell | Sequence[str | Cell]
"""Content of a cell: a text, or pieces of a text."""


@dataclass(frozen=True)
class Table:
    """Table of a section."""

    rows: Sequence[Sequence[Content]]
    header: Sequence[str] = ()
    kind: str = ""
    """Style: `scores`, `settings`, `examples`, `halves` (columns of the same width), or none."""
    folded: str = ""
    """Summary of a table that opens on demand."""


@dataclass(frozen=True)
class Figure:
    """Drawing with its title, and label and colour of each curve."""

    title: str
    legend: Sequence[tuple[str, str]]
    drawing: Markup


Block = str | Table | Sequence[Figure]
"""Part of a section; a text is a paragraph."""


def render_page(
    name: str,
    *,
    title: str,
    command: str,
    badge: Cell,
    facts: Mapping[str, str],
    sections: Mapping[str, Sequence[Block]],
) -> str:
    """Render a page as HTML.

    Args:
        name: heading.
        title: kind of report.
        command: command that writes the page.
        badge: state of what is reported, next to the heading.
        facts: values below the heading, by label.
        sections: blocks by the heading of their section; an empty text is left out.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page.html.j2").render(
        name=name, title=title, command=command, badge=badge, facts=facts, sections=sections
    )
