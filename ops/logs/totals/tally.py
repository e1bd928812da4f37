"""How many requests were rejected with one code, or how many lines one event has, and the latest of them."""

from dataclasses import dataclass, field

from penstock.ops.logs.lines.event import MOST, Event

_MAX_NAMES = 200


@dataclass(slots=True)
class Tally:
    """A count, with its time and an example."""

    count: int = 0
    lines_s: tuple[float, float] | None = None  # the first and the last line
    loads_s: tuple[float, float] | None = None  # the first and the last load that counts some
    example: Event | None = None  # the latest
    sources: set[int] = field(default_factory=set)

    def add(self, event: Event, number: int = 0) -> None:
        """One line about a number of requests or lines."""
        self.count += number
        if self.lines_s is None or event.time_s is None or event.time_s >= self.lines_s[1]:
            self.example = event
        self.sources.add(event.source)
        self.lines_s = widened(self.lines_s, event.time_s)

    def add_counted(self, number: int, time_s: float | None) -> None:
        """Requests that a load counts."""
        self.count += number
        self.loads_s = widened(self.loads_s, time_s)

    @property
    def span_s(self) -> tuple[float | None, float | None]:
        """The first and the last time: of the lines, or without any of the loads."""
        return self.lines_s or self.loads_s or (None, None)


def tally_of(table: dict[str, Tally], name: str) -> Tally:
    """The tally of a name. Any client may have written it, so later names share one where there are very many."""
    return table.setdefault(name if name in table or len(table) < _MAX_NAMES else "…", Tally())


def left_out_before(event: Event) -> int:
    """The number of lines of an event that were over the limit, before this one."""
    return max(0, int(min(event.number("suppressed") or 0, MOST)))


def widened(span_s: tuple[float, float] | None, time_s: float | None) -> tuple[float, float] | None:
    """A span of time, and a time that it is to hold, if that is known."""
    if time_s is None or span_s is None:
        return span_s if time_s is None else (time_s, time_s)
    return min(span_s[0], time_s), max(span_s[1], time_s)
