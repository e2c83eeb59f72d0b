"""Tables of scores in the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from tasks.metrics import is_loss


def format_scores(rows: Mapping[str, Mapping[str, float]]) -> str:
    """Format scores as a table, in percent except for losses and errors.

    Args:
        rows: scores by row.
    """
    names = list(dict.fromkeys(name for scores in rows.values() for name in scores))
    width = max(map(len, rows))
    widths = {name: max(14, len(name) + 2) for name in names}
    lines = [" " * width + "".join(f"{name:>{widths[name]}}" for name in names)]
    for row, scores in rows.items():
        cells = (f"{_cell(name, scores):>{widths[name]}}" for name in names)
        lines.append(f"{row:<{width}}" + "".join(cells))
    return "\n".join(lines)


def _cell(name: str, scores: Mapping[str, float]) -> str:
    if name not in scores:
        return "-"
    if name.endswith("error"):
        return f"{scores[name]:.4g}"
    return f"{scores[name]:.3f}" if is_loss(name) else f"{100 * scores[name]:.2f}"
