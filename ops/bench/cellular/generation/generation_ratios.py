"""The figures of a run of the probe of generation that are compared with each other."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from penstock.ops.bench.cellular.generation.generation_bed import BEAMS
from penstock.ops.bench.cellular.generation.generation_parts import name_of


def ratios(results: Mapping[str, Any]) -> dict[str, float]:
    """The figures that are compared, as far as their parts have results."""

    def most(name: str) -> float:
        found = results[name]["result"].values()
        return max(one if isinstance(one, float) else one["requests_per_s"] for one in found)

    def first(name: str) -> float:
        return float(next(iter(results[name]["result"].values())))

    wanted: dict[str, Callable[[], float]] = {}
    for beams in (1, BEAMS):
        name = name_of(beams)
        wanted |= {
            f"{name}: continuous over transformers": partial(_over, most, f"continuous_{name}", f"transformers_{name}"),
            f"{name}: continuous over transformers in its smallest batches": partial(
                lambda name: most(f"continuous_{name}") / first(f"transformers_{name}"), name
            ),
            f"{name}: continuous over static": partial(_over, most, f"continuous_{name}", f"static_{name}"),
            f"{name}: continuous over static at equal p99": partial(_at_equal_p99, results, f"arrivals_{name}"),
            f"{name}: step over its floor": partial(_least_ratio, results, f"step_{name}"),
        }
    found = {}
    for name, figure in wanted.items():
        try:
            found[name] = round(figure(), 2)
        except (KeyError, AttributeError, TypeError, ValueError, ZeroDivisionError):  # a part is missing or failed
            continue
    return found


def _over(most: Callable[[str], float], name: str, other: str) -> float:
    return most(name) / most(other)


def _at_equal_p99(results: Mapping[str, Any], name: str) -> float:
    """The highest rate of late joins at which all requests ended, over static batching's rate at its p99.

    Between measured rates, p99 is interpolated. Where static batching is slower at every rate, its lowest rate counts,
    so the ratio is at least what is returned.
    """
    ways = results[name]["result"]
    best = max((one for one in ways["continuous"] if not one["left"]), key=lambda one: one["rate"])
    rates, most_ms = [one["rate"] for one in ways["static"]], best["p99_ms"]
    p99s = [one["p99_ms"] for one in ways["static"]]
    found = rates[0]
    for low, high, low_ms, high_ms in zip(rates, rates[1:], p99s, p99s[1:], strict=False):
        if low_ms <= most_ms:
            found = high if high_ms <= most_ms else low + (high - low) * (most_ms - low_ms) / (high_ms - low_ms)
    return float(best["rate"] / found)


def _least_ratio(results: Mapping[str, Any], name: str) -> float:
    return min(float(one["ratio"]) for one in results[name]["result"].values())
