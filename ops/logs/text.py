"""Times, figures and names as text."""

from collections.abc import Iterable
from datetime import UTC, datetime

_FIRST_S = datetime(1, 1, 1, tzinfo=UTC).timestamp()
_LAST_S = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()


def moment(time_s: float) -> datetime:
    """A time in UTC. A span around the time of a wrong clock may reach beyond the years that have a date."""
    return datetime.fromtimestamp(min(max(time_s, _FIRST_S), _LAST_S), UTC)


def clock(time_s: float | None, *, ms: bool = False) -> str:
    """UTC time of day."""
    if time_s is None:
        return "?"
    text = moment(time_s).strftime("%H:%M:%S.%f")
    return text[:12] if ms else text[:8]


def date_and_clock(time_s: float | None) -> str:
    """UTC date and time of day."""
    return "?" if time_s is None else moment(time_s).strftime("%Y-%m-%d %H:%M:%S")


def duration(seconds: float) -> str:
    """`0.0123` -> `12.3 ms`; `75` -> `1 min 15 s`."""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds == 0:
        return "0 s"
    if seconds < 0.001:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def printable(text: str) -> str:
    """Text of a log for a terminal. Any client may have written it, so control characters are replaced."""
    return "".join([one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text])


def integer(value: float) -> str:
    return f"{value:,.0f}"


def two_digits(value: float) -> str:
    """`12`, `0.12`: all digits before the point, or two."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def rate(value: float) -> str:
    return f"{two_digits(value)}/s"


def share(value: float) -> str:
    return f"{value * 100:.1f} %"


def short(value: float) -> str:
    """Three digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def joined(parts: Iterable[str]) -> str:
    """Parts that are not empty, by commas."""
    return ", ".join(part for part in parts if part)


def count(number: float, noun: str) -> str:
    """`1 sequence`, `2 sequences`, `3 batches`."""
    ending = "" if round(number) == 1 else "es" if noun.endswith("ch") else "s"
    return f"{number:,.0f} {noun}{ending}"
