"""HTML pages without scripts and network. Their templates extend `page.html.j2`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jinja2

from training.reports.model_card import format_number


def render_page(
    template: str,
    *,
    filters: Mapping[str, Callable[..., Any]] | None = None,
    tests: Mapping[str, Callable[..., bool]] | None = None,
    folder: Path = Path(__file__).parent,
    **values: Any,
) -> str:
    """Render a page as HTML.

    Args:
        template: file in `folder` that extends `page.html.j2`.
        filters: filters of the template, in addition to `number`.
        tests: tests of the template.
        values: variables of the template; `name` is the heading.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, Path(__file__).parent]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": format_number, **(filters or {})}
    environment.tests |= dict(tests or {})
    return environment.get_template(template).render(**values)
