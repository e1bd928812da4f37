"""Loads of encoder-decoder generation: requests of given lengths, all at once or as they arrive, in one thread."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from penstock.engine.generation.generator import Generator
from penstock.engine.generation_options import GenerationOptions
from penstock.engine.types import Int32Array
from penstock.ops.bench.cellular.generation.generation_phases import Phases

MIN_LENGTH, MAX_LENGTH = 5, 100


@dataclass(frozen=True, slots=True)
class Work:
    """A source, and how many tokens are to be generated from it."""

    source: Int32Array
    new_tokens: int


def uniform_work(count: int, vocabulary: int, longest: int, seed: int) -> list[Work]:
    """Sources and outputs of lengths that are uniform in [5, longest], drawn apart."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(min(MIN_LENGTH, longest), longest + 1, (count, 2))
    return [Work(rng.integers(10, vocabulary, n, dtype=np.int32), int(new)) for n, new in lengths]


@dataclass(slots=True)
class Spent:
    """The time of a load's thread, by use, and its results."""

    encode_s: float = 0.0
    decode_s: float = 0.0
    quanta: int = 0
    ended: list[tuple[int, float]] = field(default_factory=list)  # request and time of its end


class Load:
    """Gives requests to a generator, one after another from a list that begins again at its end."""

    def __init__(
        self,
        generator: Generator,
        work: Sequence[Work],
        options_of: Callable[[int], GenerationOptions],
        phases: Phases,
        *,
        max_requests: int,
        quantum: int,
        joins_late: bool,
    ) -> None:
        """options_of: of a request with that number of new tokens. phases: of the generator's device.

        joins_late: else all join before the first step.
        """
        self._generator = generator
        self._work = work
        self._options = {new: options_of(new) for new in {one.new_tokens for one in work}}
        self._phases = phases
        self._max_requests = max_requests
        self._quantum = quantum
        self._joins_late = joins_late
        self._next = 0

    def saturate(self, seconds: float, warm_up_s: float) -> dict[str, float]:
        """Requests a second while as many run as may. Without late joins, whole batches are counted.

        And the shares of the thread's time: of `encode` and `decode` as a whole, what of them only launched or waited,
        and the rest, which is of `start` and of this load.
        """
        self._drive(_for(warm_up_s), lambda: self._max_requests, Spent())
        spent, started, before = Spent(), time.perf_counter(), dict(self._phases.seconds)
        is_over = _for(seconds)  # and until one has ended, however slow the machine is
        self._drive(lambda: bool(spent.ended) and is_over(), lambda: self._max_requests, spent)
        elapsed = time.perf_counter() - started
        self._empty()
        return {
            "requests_per_s": len(spent.ended) / elapsed,
            "quanta_per_s": spent.quanta / elapsed,
            "encode_share": spent.encode_s / elapsed,
            "decode_share": spent.decode_s / elapsed,
            "joins_per_quantum": len(spent.ended) / max(1, spent.quanta),
            **self._phases.since(before, elapsed),
        }

    def poisson(self, rate: float, seconds: float, seed: int) -> dict[str, float]:
        """Latencies of the requests that arrive at `rate` within `seconds`, from arrival to end.

        They have twice as long to end, and a second. Those that have not then are `left`, and are in no percentile.
        """
        count = max(1, int(rate * seconds))
        due = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count))
        first, started, spent = self._next, time.perf_counter(), Spent()
        is_late = _for(2 * seconds + 1)

        def arrived() -> int:
            return int(np.searchsorted(due, time.perf_counter() - started)) - (self._next - first)

        self._drive(lambda: len(spent.ended) == count or is_late(), arrived, spent)
        latencies = np.array([end - started - due[id - first] for id, end in spent.ended])
        self._empty()
        return {"rate": rate, "ended": len(latencies), "left": count - len(latencies), **_percentiles(latencies)}

    def _drive(self, is_over: Callable[[], bool], may_start: Callable[[], int], spent: Spent) -> None:
        """Run requests until it is over; a batch that none may join runs to its end."""
        generator = self._generator
        while not is_over() or (not self._joins_late and generator.active):
            if (self._joins_late or not generator.active) and not is_over():
                self._start(may_start())
                begun = time.perf_counter()
                while generator.waiting and generator.encode():
                    pass
                spent.encode_s += time.perf_counter() - begun
            if not generator.active:
                time.sleep(1e-4)
                continue
            begun = time.perf_counter()
            found = generator.decode(quantum=self._quantum)
            now = time.perf_counter()
            spent.decode_s += now - begun
            spent.quanta += 1
            spent.ended += [(one.id, now) for one in found if one.finish]

    def _start(self, count: int) -> None:
        running = len(self._generator.active) + len(self._generator.waiting)
        for _ in range(min(count, self._max_requests - running)):
            work = self._work[self._next % len(self._work)]
            self._generator.start(self._next, work.source, self._options[work.new_tokens])
            self._next += 1

    def _empty(self) -> None:
        for id in (*self._generator.waiting, *self._generator.active):
            self._generator.cancel(id)


def _percentiles(latencies: npt.NDArray[np.float64]) -> dict[str, float]:
    if not len(latencies):
        return {}
    return {f"p{share}_ms": float(1e3 * np.percentile(latencies, share)) for share in (50, 90, 99)}


def _for(seconds: float) -> Callable[[], bool]:
    """Whether the seconds have passed since this call."""
    ends = time.perf_counter() + seconds
    return lambda: time.perf_counter() >= ends
