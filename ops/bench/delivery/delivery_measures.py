"""The figures of one kept run of the suite `delivery` by name, from the raw values of its parts."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from penstock.ops.bench.common.kept_tables import Measures, Record
from penstock.ops.bench.delivery.turns import PROCESSES, cpu_us, rate

PENSTOCK, FASTSTREAM, DEFAULT = "penstock", "FastStream", "FastStream, default acknowledgement"
SERVICES = (PENSTOCK, FASTSTREAM, DEFAULT)
MODES = {"modes": "null engine", "modes-minilm": "all-MiniLM-L6-v2"}  # part -> its model
CRASH_FIGURES = {
    "requests": "requests",
    "unanswered": "requests never answered",
    "answered_twice": "requests answered twice",
}
TWICE_BY_KEY = "requests answered twice, equal keys dropped"

Found = Iterator[tuple[str, float]]
Details = Mapping[str, Any]


def measures(record: Record) -> Measures:
    """Rates in requests a second, processor time a record in µs, shares and ratios within the run.

    What was not measured is absent.
    """
    details = {part: result["details"] for part, result in record["parts"].items()}
    found: dict[str, float] = {}
    for part, read in _READERS.items():
        if part in details and "not_applicable" not in details[part]:
            found |= dict(read(details[part]))
    for part, model in MODES.items():
        if part in details:
            found |= dict(_modes(details[part], model))
    return found


def _poison(details: Details) -> Found:
    for service in (PENSTOCK, FASTSTREAM):
        result = details[service]
        yield f"poison, {service}, good requests unanswered, share", result["good_unanswered"] / result["good"]


def _crash(details: Details) -> Found:
    for service in (service for service in SERVICES if service in details):
        for figure, name in CRASH_FIGURES.items():
            yield f"crash, {service}, {name}", details[service][figure]
        if service == PENSTOCK:  # the only one whose replies have keys
            yield f"crash, {service}, {TWICE_BY_KEY}", details[service]["answered_twice_by_key"]
        recoveries = details[service]["recovery_s"]
        if None not in recoveries:  # None: a partition was never answered again
            yield f"crash, {service}, recovery, s", max(recoveries)


def _roll(details: Details) -> Found:
    yield "roll, requests lost", details["lost"]
    if details["p99_ms"] is not None:
        yield "roll, p99, s", details["p99_ms"] / 1e3
    if details["roll_s"] is not None:  # None: it was longer than the load
        yield "roll, s", details["roll_s"]


def _modes(details: Details, model: str) -> Found:
    for load, sides in details["loads"].items():
        work = f"{model}, {load}"
        for mode, rounds in sides.items():
            yield from _side(f"{work}, {mode}", rounds)
        yield (
            f"{work}, exactly_once over at_least_once",
            rate(sides["exactly_once"]) / rate(sides["at_least_once"]),
        )


def _before(details: Details) -> Found:
    for load, sides in details["loads"].items():
        for side, rounds in sides.items():
            yield from _side(f"{side}, {load}", rounds)
        yield f"{load}, now over before", rate(sides["now"]) / rate(sides["before"])
        yield f"{load}, worker's µs, now over before", _ratio_of_costs(sides)


def _ratio_of_costs(sides: Details) -> float:
    return cpu_us(sides["now"], "worker") / cpu_us(sides["before"], "worker")


def _side(name: str, rounds: Any) -> Found:
    yield f"{name}, req/s", rate(rounds)
    for process in PROCESSES:
        yield f"{name}, {process} µs a record", cpu_us(rounds, process)


_READERS: Mapping[str, Callable[[Details], Found]] = {
    "poison": _poison,
    "crash": _crash,
    "crash-default": _crash,
    "roll": _roll,
    "before": _before,
}
