"""Markdown tables."""

import math
from collections.abc import Sequence
from typing import Any


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns of figures to the right; the first column and those of words to the left."""
    cells = [[cell(value) for value in row] for row in rows]
    others = ["---:" if all(map(_is_figure, column)) else "---" for column in list(zip(*cells, strict=True))[1:]]
    lines = [columns, ["---", *(others or ["---:"] * (len(columns) - 1))], *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _is_figure(text: str) -> bool:
    return not text or text[0].isdigit() or text[0] in "-≤≥∞"


def cell(value: Any) -> str:
    """About three digits; empty for None and NaN."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 10 else f"{value:.3f}"
