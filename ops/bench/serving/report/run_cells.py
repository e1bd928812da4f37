"""Figures of a run as cells of its tables."""

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else math.nan


def shown_share(value: float | None) -> str:
    """Share as text; null in the file means that there was nothing to take a share of."""
    return "" if value is None or math.isnan(value) else f"{value:.2%}"


def shown_off(real: float | None, simulated: float | None) -> str:
    return "" if real is None or simulated is None else f"{simulated / real - 1:+.1%}"


def shown_rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def ms(seconds: float | None) -> str:
    return ms_of(None if seconds is None or math.isinf(seconds) else seconds * 1e3)


def ms_of(milliseconds: float | None) -> str:
    if milliseconds is None:
        return "+∞"
    return f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.1f}"
