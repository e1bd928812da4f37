"""Members, devices and partitions for a load: arithmetic on a cost table. Pure."""

import math
import re
import statistics
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from penstock.scheduler import CostFunction
from penstock.worker.supervision.placement import MEMBERS_PER_GPU

# Of what full batches would answer. The rest absorbs bursts, uneven partitions and the time that a lane is idle between
# batches; tests/ops/test_capacity.py simulates fleets of this load. At 0.75 three real runs had 97.4 to 99.5 % in time.
UTILISATION = 0.6
PARTITIONS_PER_MEMBER = 4  # after the loss of a member, the others' shares differ by a quarter at most
_BATCH_OF_SLO = 4  # part of the SLO that a batch takes at most: a request may find one running and one prepared
_NUM_LENGTHS = 20_000  # that are packed into batches
_MAX_TOKENS = 1_000_000  # of one sequence
_SHOWN_CHARS = 40  # of a line at fault
_Z95 = statistics.NormalDist().inv_cdf(0.95)

Lengths = npt.NDArray[np.int64]


class ImpossibleLoad(ValueError):
    """No number of members serves the load. The message has the figures."""


@dataclass(frozen=True, slots=True)
class DeviceCapacity:
    """Device and model of a cost table."""

    is_gpu: bool
    lanes: int  # batches at a time
    members: int  # that share it

    @classmethod
    def of(cls, name: str) -> Self:
        """From the device of a cost table's key: a processor's ends in its number of cores."""
        cores = re.search(r", (\d+) cores?$", name)
        return cls(True, 1, MEMBERS_PER_GPU) if cores is None else cls(False, int(cores[1]), 1)


@dataclass(frozen=True, slots=True)
class FullBatches:
    """Batches of a queue that is never empty: means."""

    sequences: float
    tokens: float
    seconds: float
    long_tokens: int  # one sequence in a thousand is longer
    long_alone_s: float  # of one that long


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """A fleet for one load."""

    rate_per_s: float
    slo_s: float | None
    device: DeviceCapacity
    batch: FullBatches
    lane_per_s: float  # requests in full batches
    device_per_s: float
    devices: int
    members: int
    partitions: int

    @property
    def load(self) -> float:
        """Part of the fleet's capacity in use."""
        return self.rate_per_s / (self.devices * self.device_per_s)

    @property
    def load_without_one(self) -> float:
        """The same while a device is lost; infinite if it was the only one."""
        return self.load * self.devices / (self.devices - 1) if self.devices > 1 else math.inf


def plan_capacity(
    cost: CostFunction,
    device: DeviceCapacity,
    lengths: Lengths,
    *,
    rate_per_s: float,
    slo_s: float | None,
    max_sequences: int,
    max_tokens: int,
) -> CapacityPlan:
    """The least fleet that serves `rate_per_s` sequences a second.

    Args:
        lengths: tokens of sequences, a sample in the order in which they come.
        slo_s: the latency objective; None: none.
        max_sequences: of a batch, as the tokens.

    Raises:
        ImpossibleLoad: more than one sequence in a thousand takes too much of the SLO alone, or the costs are no times.
    """
    most_s = math.inf if slo_s is None else slo_s / _BATCH_OF_SLO
    batch = full_batches(cost, lengths, max_sequences=max_sequences, max_tokens=max_tokens, most_s=most_s)
    _require_possible(batch, slo_s)
    lane_per_s = batch.sequences / batch.seconds
    device_per_s = lane_per_s * device.lanes
    devices = max(1, math.ceil(rate_per_s / (UTILISATION * device_per_s)))
    members = devices * device.members
    return CapacityPlan(
        rate_per_s, slo_s, device, batch, lane_per_s, device_per_s, devices, members, PARTITIONS_PER_MEMBER * members
    )


def _require_possible(batch: FullBatches, slo_s: float | None) -> None:
    if slo_s is not None and batch.long_alone_s > slo_s / 2:
        raise ImpossibleLoad(
            f"One sequence in a thousand has {batch.long_tokens:,} tokens or more and takes "
            f"{batch.long_alone_s * 1e3:.1f} ms alone: more than half of the SLO of {slo_s * 1e3:g} ms."
        )
    if not 0 < batch.seconds < math.inf:
        raise ImpossibleLoad(f"By the cost table a full batch takes {batch.seconds:g} s. Measure it again.")


def full_batches(
    cost: CostFunction, lengths: Lengths, *, max_sequences: int, max_tokens: int, most_s: float
) -> FullBatches:
    """Pack the lengths in their order, each batch as full as the bounds allow; a long sequence may run alone."""
    begun, tokens, squares, longest = 0, 0, 0, 0
    seconds = 0.0  # of the open batch
    total_s, num_batches = 0.0, 0
    for place, length in enumerate(lengths.tolist()):
        more, more_squares, most = tokens + length, squares + length * length, max(longest, length)
        count = place - begun + 1
        longer_s = cost.seconds(more, more_squares, most, count)
        if count > 1 and (count > max_sequences or more > max_tokens or longer_s > most_s):
            total_s, num_batches = total_s + seconds, num_batches + 1
            begun, more, more_squares, most = place, length, length * length, length
            longer_s = cost.seconds(length, length * length, length, 1)
        tokens, squares, longest, seconds = more, more_squares, most, longer_s
    if num_batches == 0:  # the last batch counts only if it is the only one: it is not full
        total_s, num_batches, begun, tokens = seconds, 1, len(lengths), 0
    long = int(np.quantile(lengths, 0.999))
    return FullBatches(
        begun / num_batches,
        (int(lengths.sum()) - tokens) / num_batches,
        total_s / num_batches,
        long,
        cost.seconds(long, long * long, long, 1),
    )


def lengths_of(mean: float, p95: float) -> Lengths:
    """A sample of a log-normal distribution with this mean and 95th percentile.

    Raises:
        ValueError: no log-normal distribution of lengths has both.
    """
    spread = _Z95**2 - 2 * math.log(p95 / mean) if 1 <= mean <= p95 <= _MAX_TOKENS else -1.0  # NaN is not in order
    if spread < 0:
        raise ValueError(
            f"expected a mean and a 95th percentile of 1 to 3.87 times the mean, from 1 to {_MAX_TOKENS:,} tokens. "
            f"Given: {mean:g}/{p95:g}"
        )
    sigma = _Z95 - math.sqrt(spread)
    mu = math.log(mean) - sigma**2 / 2
    places = np.random.default_rng(0).permutation(_NUM_LENGTHS)  # evenly spaced quantiles, in random order
    standard = statistics.NormalDist()
    quantiles = [mu + sigma * standard.inv_cdf((place + 0.5) / _NUM_LENGTHS) for place in places.tolist()]
    return np.clip(np.rint(np.exp(quantiles)), 1, _MAX_TOKENS).astype(np.int64)


def lengths_in(path: Path) -> Lengths:
    """A sample from a file with one number of tokens a line. Reads it once: it may be a pipe.

    Raises:
        ValueError: a line is no whole number of tokens, or there is none.
        OSError: the file cannot be read.
    """
    found = array("q")
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            if text := line.strip():
                found.append(_tokens(text, f"line {number:,} of {path}"))
    if not found:
        raise ValueError(f"{path} has no number of tokens; expected one a line")
    return np.random.default_rng(0).choice(found, _NUM_LENGTHS, replace=len(found) < _NUM_LENGTHS)


def _tokens(text: str, place: str) -> int:
    # Longer texts are not converted: that takes quadratic time.
    tokens = int(text) if text.isdecimal() and len(text) <= len(str(_MAX_TOKENS)) else 0
    if not 1 <= tokens <= _MAX_TOKENS:
        shown = text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
        raise ValueError(f"{place} must be a number of tokens from 1 to {_MAX_TOKENS:,}. Found: {shown!r}")
    return tokens
