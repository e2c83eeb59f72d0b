"""Tables as text: in Markdown, and of scores in the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tasks.metrics import is_loss


def markdown_table(rows: Iterable[Sequence[str]]) -> str:
    """Format rows as a Markdown table that is aligned as plain text.

    Args:
        rows: rows with the same number of cells; the first is the header. The first column is aligned left, the others
            right.
    """
    lines = list(rows)
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    cells = (
        [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        for line in (lines[0], rule, *lines[1:])
    )
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def format_scores(rows: Mapping[str, Mapping[str, float]]) -> str:
    """Format scores by row as a table, in percent except for losses and errors."""
    names = list(dict.fromkeys(name for scores in rows.values() for name in scores))
    width = max(map(len, rows))
    widths = {name: max(14, len(name) + 2) for name in names}
    lines = [" " * width + "".join(f"{name:>{widths[name]}}" for name in names)]
    for row, scores in rows.items():
        cells = (f"{_cell(name, scores):>{widths[name]}}" for name in names)
        lines.append(f"{row:<{width}}" + "".join(cells))
    return "\n".join(lines)


ClassScores = Mapping[str, Mapping[str, float]]
"""Scores of each class (see `tasks.metrics.scores_by_class`)."""
MAX_CLASSES = 40
"""Most classes whose scores are printed."""


def format_class_scores(classes: ClassScores) -> str:
    """Format the scores of classes as a table below the scores; empty without classes.

    If there are many, the worst come first, and the rest is counted.
    """
    if not classes:
        return ""
    shown = dict(classes)
    if left := max(0, len(classes) - MAX_CLASSES):
        shown = dict(sorted(classes.items(), key=lambda item: item[1]["f1"])[:MAX_CLASSES])
    note = f"\n{left:,} more have a higher or equal f1" if left else ""
    return f"\n\n{format_scores(shown)}{note}"


def _cell(name: str, scores: Mapping[str, float]) -> str:
    if name not in scores:
        return "-"
    if name == "support":
        return f"{scores[name]:,}"
    if name.endswith("error"):
        return f"{scores[name]:.4g}"
    return f"{scores[name]:.3f}" if is_loss(name) else f"{100 * scores[name]:.2f}"
