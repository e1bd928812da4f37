"""The figures of a run of the probe of generation that are compared with each other."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from penstock.ops.bench.cellular.generation.generation_parts import BEAMS, name_of


def ratios(results: Mapping[str, Any]) -> dict[str, float]:
    """The figures that are compared, as far as their parts have results."""

    def most(name: str) -> float:
        found = results[name]["result"].values()
        return max(one if isinstance(one, float) else one["requests_per_s"] for one in found)

    wanted: dict[str, Callable[[], float]] = {}
    for beams in (1, BEAMS):
        name = name_of(beams)
        wanted |= {
            f"{name}: continuous over transformers": partial(_over, most, f"continuous_{name}", f"transformers_{name}"),
            f"{name}: continuous over static": partial(_over, most, f"continuous_{name}", f"static_{name}"),
            f"{name}: step over its floor": partial(_least_ratio, results, f"step_{name}"),
        }
    found = {}
    for name, figure in wanted.items():
        try:
            found[name] = round(figure(), 2)
        except (KeyError, AttributeError, ZeroDivisionError):  # a part is missing or failed
            continue
    return found


def _over(most: Callable[[str], float], name: str, other: str) -> float:
    return most(name) / most(other)


def _least_ratio(results: Mapping[str, Any], name: str) -> float:
    return min(float(one["ratio"]) for one in results[name]["result"].values())
