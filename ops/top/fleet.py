"""The members behind some metrics ports, as the scrapes so far show them."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from penstock.ops.top.columns import RESTARTS, Figures, figures
from penstock.ops.top.scrape import NoAnswer, Scrape, Values
from penstock.ops.top.window import Counted, Window, together

_MAX_RATES = 60  # that are kept for the curve


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
    def counted(self) -> Counted | None:
        """What it has counted in the last seconds. None before its second look."""
        return self.window.counted() if self.state == "up" else None

    @property
    def figures(self) -> Figures:
        """Of one that does not answer its restarts alone are known."""
        known = figures([self.values], self.counted)
        return known if self.state == "up" else {RESTARTS: known[RESTARTS]}


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
        up = [member for member in self._members.values() if member.state == "up"]
        counted = [one for member in up if (one := member.counted) is not None]
        made = figures([member.values for member in up], together(counted) if counted else None)
        return {**made, RESTARTS: figures([one.values for one in self._members.values()], None)[RESTARTS]}

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
