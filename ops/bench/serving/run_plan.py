"""Options of a benchmark run: its parts, workloads and durations."""

import math
from dataclasses import dataclass

from penstock.ops.bench.serving.harness import BenchHarness, Load

PARTS = ("saturation", "goodput", "bursts", "classes")
LENGTHS = ("2-100", "5-500")
KAFKA, LOADS = "kafka", "loads"  # parts that are run when they are asked for: they need a broker
_LEAST_SLO_S = 0.05
_SLO_OF_LONGEST = 5  # times the longest request alone, where that is more: a CPU's
_SECONDS_OF_SLO = 4
_SATURATED_ANSWERS = 600  # of a run that saturation is taken from, where _LONGER is enough for them
_LONGER = 2.0  # times `seconds`
_FEWEST_ANSWERS = 80  # of an overloaded run, however long that takes


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Options of the benchmark."""

    parts: tuple[str, ...] = PARTS
    lengths: tuple[str, ...] = LENGTHS  # the first is also that of the parts about objectives
    slo_s: float | None = None  # None: 50 ms, or what the longest request needs
    seconds: float = 2.0  # of each real run, at least
    bootstrap_servers: str | None = None  # of KAFKA and LOADS; None: a broker of its own

    @property
    def is_whole(self) -> bool:
        """Whether it has every part that needs no broker, with the usual lengths."""
        return set(PARTS) <= set(self.parts) and self.lengths == LENGTHS

    def slo_of(self, bench: BenchHarness, lengths: str) -> float:
        """Latency objective for requests of these lengths, in seconds."""
        if self.slo_s is not None:
            return self.slo_s
        return max(_LEAST_SLO_S, _rounded_up(_SLO_OF_LONGEST * bench.longest_s(lengths)))

    def load(self, lengths: str, rate_per_s: float, slo_s: float, *, times: float = 1.0) -> Load:
        """Load of a real run of `times` the usual length."""
        return Load(lengths, rate_per_s, times * max(self.seconds, _SECONDS_OF_SLO * slo_s))

    def overload(self, lengths: str, rate_per_s: float, slo_s: float, expected_per_s: float) -> Load:
        """Load of a real run that measures saturation, long enough for a steady number of answers."""
        enough_s = min(_SATURATED_ANSWERS / expected_per_s, _LONGER * self.seconds)
        enough_s = max(enough_s, _FEWEST_ANSWERS / expected_per_s)
        return Load(lengths, rate_per_s, max(self.load(lengths, rate_per_s, slo_s).seconds, enough_s))


def _rounded_up(seconds: float) -> float:
    """Round to half a digit: 0.137 is 0.15."""
    digit = 0.5 * 10.0 ** math.floor(math.log10(seconds))
    return math.ceil(seconds / digit) * digit
