"""The members behind some metrics ports, as the scrapes so far show them."""

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from penstock.ops.top.columns import COLUMNS, RESTARTS, Figures, figures, routes
from penstock.ops.top.scrape import NoAnswer, SampleKey, Scrape, Values

_MAX_RATES = 60  # that are kept for the curve
_COUNTED = ("_total", "_bucket", "_count", "_sum")  # ends of names of samples that only grow


class Window:
    """The counts of one member during the last `span_s` seconds: differences of scrapes, through restarts."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._last: tuple[float, Values] | None = None
        self._steps: deque[tuple[float, float, Values]] = deque()  # when each began and ended, and its counts

    def add(self, time_s: float, values: Values) -> None:
        """A scrape. A counter that is less than before was set back by a restart: all count from 0 then, as it did."""
        counters = {key: value for key, value in values.items() if key.name.endswith(_COUNTED)}
        if self._last is not None and time_s > self._last[0]:
            before_s, before = self._last
            if any(value < before.get(key, 0.0) for key, value in counters.items()):
                before = {}
            counts = {key: value - before.get(key, 0.0) for key, value in counters.items()}
            self._steps.append((before_s, time_s, counts))
        self._last = time_s, counters
        while len(self._steps) > 1 and self._steps[0][0] < time_s - self._span_s - 1e-6:
            self._steps.popleft()

    def rates(self) -> Values | None:
        """Counts a second. None before the second scrape."""
        seconds = sum(end_s - start_s for start_s, end_s, _ in self._steps)
        sums: defaultdict[SampleKey, float] = defaultdict(float)
        for _, _, counts in self._steps:
            for key, value in counts.items():
                sums[key] += value
        return {key: value / seconds for key, value in sums.items()} if self._steps else None


@dataclass(slots=True)
class Member:
    """One member, which has a row on the screen."""

    name: str
    window: Window
    values: Values = field(default_factory=dict)
    model: str = ""
    state: str = "down"  # not since the first look; `up` or, of one that was, `gone`
    seen_s: float = 0.0  # when it was up last

    @property
    def rates(self) -> list[Values]:
        """Its own recent counts a second. Empty before its second look."""
        rates = self.window.rates() if self.state == "up" else None
        return [] if rates is None else [rates]

    @property
    def figures(self) -> Figures:
        """Of one that does not answer its restarts alone are known."""
        known = figures([self.values], self.rates, COLUMNS)
        return known if self.state == "up" else {RESTARTS: known[RESTARTS]} if RESTARTS in known else {}


class Fleet:
    """All members of all addresses. One that disappears stays, as gone, until another serves in its place."""

    def __init__(
        self,
        addresses: Sequence[str],
        scrape: Callable[[str], Scrape],
        clock: Callable[[], float],
        window_s: float = 10.0,
    ) -> None:
        """`addresses` are normalized. `scrape` raises NoAnswer. `clock`: steady seconds. Rates are of `window_s`."""
        self.silent: dict[str, str] = {}  # address -> why it does not answer
        self.states: dict[str, int] = {}  # of the supervisors' members
        self._complete: set[str] = set()  # addresses whose supervisors miss no member that serves
        self.rates: deque[float] = deque(maxlen=_MAX_RATES)  # requests a second after each look
        self._addresses = list(dict.fromkeys(addresses))
        self._scrape = scrape
        self._clock = clock
        self.now_s = clock()  # of the latest look
        self._window_s = window_s
        self._members: dict[tuple[str, str], Member] = {}

    def look(self) -> None:
        """Scrape all addresses at the same time. Raises NoAnswer if none has ever answered."""
        with ThreadPoolExecutor(min(32, len(self._addresses)), thread_name_prefix="scrape") as threads:
            found = list(threads.map(self._answer, self._addresses))
        self.silent, self.states = {}, {}
        self._complete.clear()
        for member in self._members.values():
            member.state = "gone" if member.state == "up" else member.state
        for address, (time_s, answer) in zip(self._addresses, found, strict=True):
            self.now_s = max(self.now_s, time_s)
            if isinstance(answer, NoAnswer):
                self.silent[address] = str(answer)
                continue
            for state, count in answer.states.items():
                self.states[state] = self.states.get(state, 0) + count
            for worker, values in answer.workers.items():
                self._add(address, worker, time_s, values)
            if self._is_complete(address, answer.states):
                self._complete.add(address)
        if not self._members:
            raise NoAnswer(". ".join([*self.silent.values(), "A worker serves metrics with --metrics-port."]))
        if (rate := self.total().get("req/s")) is not None:
            self.rates.append(rate)

    def rows(self) -> list[Member]:
        """The members, in the order in which they appeared. One that stood by has another number than it replaces."""
        members = self._members.items()
        return [member for (at, _), member in members if member.state == "up" or at not in self._complete]

    def total(self) -> Figures:
        """All members that answer together; restarts are of all."""
        made = figures(*self._up(), COLUMNS)
        of_all = figures([member.values for member in self._members.values()], [], COLUMNS)
        return {**made, **{title: of_all[title] for title in (RESTARTS,) if title in of_all}}

    def routes(self) -> Mapping[str, Figures]:
        """The routes of the members that answer, by input topic."""
        return routes(*self._up())

    def _up(self) -> tuple[list[Values], list[Values]]:
        """The latest samples of members that answer, and what they count in a second."""
        up = [member for member in self._members.values() if member.state == "up"]
        return [member.values for member in up], [rates for member in up for rates in member.rates]

    def _answer(self, address: str) -> tuple[float, Scrape | NoAnswer]:
        try:
            answer: Scrape | NoAnswer = self._scrape(address)
        except NoAnswer as error:
            answer = error
        return self._clock(), answer

    def _add(self, address: str, worker: str, time_s: float, values: Values) -> None:
        member = self._members.get((address, worker))
        if member is None:
            member = Member(_name(address, worker, self._addresses), Window(self._window_s))
            self._members[address, worker] = member
        builds = [key for key in values if key.name == "penstock_build_info"]
        if not builds:  # a member that does not answer its supervisor has only its restarts
            member.values = {**member.values, **values}
            return
        member.state, member.seen_s, member.values, member.model = "up", time_s, values, builds[0].label("model")
        member.window.add(time_s, values)

    def _is_complete(self, address: str, states: Mapping[str, int]) -> bool:
        num_up = sum(member.state == "up" for (at, _), member in self._members.items() if at == address)
        missing = sum(states.values()) - states.get("serving", 0) - states.get("standby", 0)
        return bool(states) and not missing and num_up >= states.get("serving", 0)


def _name(address: str, worker: str, addresses: Sequence[str]) -> str:
    """The worker's number; the host and port where there are several addresses or no number."""
    place = urlsplit(address).netloc
    if not worker:
        return place
    return worker if len(addresses) == 1 else f"{place} {worker}"
