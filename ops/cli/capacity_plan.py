"""Members, devices and partitions for a load: arithmetic on a cost table. Pure."""

import math
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from penstock.scheduler import CostFunction
from penstock.worker.supervision.placement import MEMBERS_PER_GPU

# Of what full batches would answer. The rest absorbs bursts, uneven partitions and the time that a lane is idle between
# batches; tests/ops/test_capacity.py simulates fleets of this load.
UTILISATION = 0.75
PARTITIONS_PER_MEMBER = 4  # after the loss of a member, the others' shares differ by a quarter at most
_BATCH_OF_SLO = 4  # part of the SLO that a batch takes at most: a request may find one running and one prepared
_NUM_LENGTHS = 20_000  # that are packed into batches
_Z95 = statistics.NormalDist().inv_cdf(0.95)

Lengths = npt.NDArray[np.int64]


class ImpossibleLoad(ValueError):
    """No number of members serves the load. The message has the figures."""


@dataclass(frozen=True, slots=True)
class Device:
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
    device: Device
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
    device: Device,
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
        ImpossibleLoad: more than one sequence in a thousand takes too much of the SLO alone.
    """
    most_s = math.inf if slo_s is None else slo_s / _BATCH_OF_SLO
    batch = full_batches(cost, lengths, max_sequences=max_sequences, max_tokens=max_tokens, most_s=most_s)
    if slo_s is not None and batch.long_alone_s > slo_s / 2:
        raise ImpossibleLoad(
            f"One sequence in a thousand has {batch.long_tokens:,} tokens or more and takes "
            f"{batch.long_alone_s * 1e3:.1f} ms alone: more than half of the SLO of {slo_s * 1e3:g} ms."
        )
    lane_per_s = batch.sequences / batch.seconds
    device_per_s = lane_per_s * device.lanes
    devices = max(1, math.ceil(rate_per_s / (UTILISATION * device_per_s)))
    members = devices * device.members
    return CapacityPlan(
        rate_per_s,
        slo_s,
        device,
        batch,
        lane_per_s,
        device_per_s,
        devices,
        members,
        PARTITIONS_PER_MEMBER * members,
    )


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
        ValueError: no log-normal distribution has both.
    """
    spread = _Z95**2 - 2 * math.log(p95 / mean) if 0 < mean <= p95 else -1.0
    if spread < 0:
        raise ValueError(f"expected a mean and a 95th percentile of 1 to 3.87 times the mean. Given: {mean:g}/{p95:g}")
    sigma = _Z95 - math.sqrt(spread)
    mu = math.log(mean) - sigma**2 / 2
    places = np.random.default_rng(0).permutation(_NUM_LENGTHS)  # evenly spaced quantiles, in random order
    standard = statistics.NormalDist()
    quantiles = [mu + sigma * standard.inv_cdf((place + 0.5) / _NUM_LENGTHS) for place in places.tolist()]
    return np.maximum(1, np.rint(np.exp(quantiles))).astype(np.int64)


def lengths_in(path: Path) -> Lengths:
    """A sample from a file with one number of tokens a line.

    Raises:
        ValueError: a line is no whole number above 0, or there is none.
        OSError: the file cannot be read.
    """
    lines = path.read_text(encoding="utf-8-sig").split()
    bad = next((line for line in lines if not line.isdecimal() or int(line) == 0), None)
    if bad is not None or not lines:
        raise ValueError(f"{path} must have one number of tokens a line. Found: {bad!r}")
    found = np.array(lines, dtype=np.int64)
    return np.random.default_rng(0).choice(found, _NUM_LENGTHS, replace=len(found) < _NUM_LENGTHS)
