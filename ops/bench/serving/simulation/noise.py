"""Batch times beyond their prediction: scatter, and host time. Learned from real runs, for simulated ones."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.ops.bench.serving.loads.arrivals import Floats
from penstock.ops.bench.serving.loads.outcome import Ran
from penstock.scheduler import CostFunction, CostTable

# (tokens, squares, longest, count) of a batch, and whether it found its lane idle -> s
Seconds = Callable[[int, int, int, int, bool], float]

_DRAWS = 4096  # at a time
_FEWEST = 10  # batches to learn from
_USUAL = 0.9  # quantile of batches that the cost of a sequence is fitted to; slower ones were delayed
_LEAST = 0.1  # share of its predicted device time that a batch takes at least
_KEPT = np.arange(0.25, 100, 0.5)  # percentiles that a result file keeps


@dataclass(frozen=True, slots=True)
class Noise:
    """Scatter of measured about predicted times: factors, drawn with replacement."""

    ratios: Floats  # measured / predicted, one a batch seen; each > 0

    @classmethod
    def none(cls) -> "Noise":
        """Every batch takes what was predicted."""
        return cls(np.ones(1))

    @classmethod
    def of_table(cls, table: CostTable) -> "Noise":
        """Scatter of the timings that a table was fitted to; none where the table holds no timings."""
        ratios = [1 / (1 + sample.error(table)) for sample in table.samples]
        return cls(np.array(ratios)) if ratios else cls.none()

    def to_list(self) -> list[float]:
        """For a result file: percentiles."""
        kept: list[float] = np.percentile(self.ratios, _KEPT).tolist()
        return kept


@dataclass(frozen=True, slots=True)
class HostTime:
    """Seconds of the host for a batch, beyond the device's: so many a sequence, and what is left, drawn."""

    per_sequence_s: float
    rest_s: Floats  # one a batch seen; may be below 0

    @classmethod
    def none(cls) -> "HostTime":
        return cls(0.0, np.zeros(1))

    @classmethod
    def of(cls, counts: Sequence[int], host_s: Sequence[float], known: "HostTime") -> "HostTime":
        """Learned of batches with so many sequences; `known` where they are few."""
        if len(counts) < _FEWEST:
            return known
        count, seconds = np.array(counts, np.float64), np.array(host_s)
        usual = seconds <= np.quantile(seconds, _USUAL)
        spread = float(np.var(count[usual]))
        slope = float(np.cov(count[usual], seconds[usual], bias=True)[0, 1]) / spread if spread > 0 else 0.0
        # Where all batches are full, the fitted slope may be negative or too steep: at most, sequences cost all of it.
        slope = max(0.0, min(slope, float(np.median(seconds[usual]) / np.median(count[usual]))))
        return cls(slope, seconds - slope * count)

    def to_dict(self) -> dict[str, Any]:
        """For a result file."""
        return {"per_sequence_s": self.per_sequence_s, "rest_s": np.percentile(self.rest_s, _KEPT).tolist()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "HostTime":
        return cls(float(data["per_sequence_s"]), np.array(data["rest_s"], np.float64))


@dataclass(frozen=True, slots=True)
class Overhead:
    """Host time of batches, from their start to their known end."""

    idle: HostTime  # to one that found its lane idle: the device waits for all that the host does
    behind: HostTime  # to one that waited behind another: most of it was done by then

    @classmethod
    def none(cls) -> "Overhead":
        return cls(HostTime.none(), HostTime.none())

    @classmethod
    def of(cls, runs: Sequence[tuple[Sequence[Ran], float, float]], known: "Overhead") -> "Overhead":
        """Learned of real runs: all batches of each, and from when to when they count. A batch that
        waited began at the moment at which another ended. Few batches change nothing of `known`.
        """
        seen: dict[bool, tuple[list[int], list[float]]] = {True: ([], []), False: ([], [])}
        for batches, begin, end in runs:
            ends = {ran.finished for ran in batches}
            for ran in batches:
                if begin <= ran.started < end:
                    counts, host_s = seen[ran.started not in ends]
                    counts.append(ran.count)
                    host_s.append(ran.finished - ran.started - ran.measured_s)
        return cls(HostTime.of(*seen[True], known.idle), HostTime.of(*seen[False], known.behind))

    def to_dict(self) -> dict[str, Any]:
        """For a result file."""
        return {"idle": self.idle.to_dict(), "behind": self.behind.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Overhead":
        return cls(HostTime.from_dict(data["idle"]), HostTime.from_dict(data["behind"]))


def noisy(cost: CostFunction, noise: Noise, seed: int, overhead: Overhead | None = None) -> Seconds:
    """Batches that take `cost` times a factor, and the host's part; None: it has none."""
    host = Overhead.none() if overhead is None else overhead
    factor = _draws(noise.ratios, (seed, 0))
    rests = {True: _draws(host.idle.rest_s, (seed, 1)), False: _draws(host.behind.rest_s, (seed, 2))}

    def seconds(tokens: int, squares: int, longest: int, count: int, is_idle: bool) -> float:
        device_s = float(cost.seconds(tokens, squares, longest, count)) * next(factor)
        part = host.idle if is_idle else host.behind
        return max(_LEAST * device_s, device_s + part.per_sequence_s * count + next(rests[is_idle]))

    return seconds


def _draws(values: Floats, seed: tuple[int, int]) -> Iterator[float]:
    """Endless, with replacement."""
    random = np.random.default_rng(seed)
    while True:
        yield from random.choice(values, _DRAWS).tolist()
