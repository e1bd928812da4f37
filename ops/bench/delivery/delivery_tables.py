"""Figures and tables of the kept runs of delivery: rates in requests a second, processor time a record in µs."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.ops.bench.common.measures import At, From, Suite
from penstock.ops.bench.common.tables import Grid, Table, Targets
from penstock.ops.bench.load.load_bench import PROCESSES, rate

PENSTOCK, FASTSTREAM, DEFAULT = "penstock", "FastStream", "FastStream, default acknowledgement"
SERVICES = (PENSTOCK, FASTSTREAM, DEFAULT)
MODES = {"modes": "null engine", "modes-minilm": "all-MiniLM-L6-v2"}  # part -> its model
PARTS = ("poison", "crash", "crash-default", "roll", *MODES, "before")
_TWICE_BY_KEY = "requests answered twice, equal keys dropped"
CRASH_FIGURES = {
    "requests": "requests",
    "requests never answered": "unanswered",
    "requests answered twice": "answered_twice",
}

Details = Mapping[str, Any]


def _sides(path: str, name: str) -> list[At]:
    """Figures of both sides of each load."""
    return [
        At(path, f"{name}, req/s", rate),
        *[At(path, f"{name}, {kind} µs a record", _cpu_us(kind)) for kind in PROCESSES],
    ]


def _cpu_us(process: str) -> Callable[[Sequence[Details]], float]:
    return lambda rounds: statistics.median([float(record["cpu_us"][process]) for record in rounds])


def _recovery_s(recoveries: Sequence[float | None]) -> float | None:
    """None: a partition was never answered again."""
    found = [seconds for seconds in recoveries if seconds is not None]
    return max(found) if len(found) == len(recoveries) else None


SUITE = Suite(
    "delivery",
    (
        At(
            "poison.*",
            "poison, *, good requests unanswered, share",
            lambda found: found["good_unanswered"] / found["good"] if "good" in found else None,
        ),
        *[
            At(f"{part}.*.{key}", f"crash, *, {name}")
            for part in ("crash", "crash-default")
            for name, key in CRASH_FIGURES.items()
        ],
        At(f"crash.{PENSTOCK}.answered_twice_by_key", f"crash, {PENSTOCK}, {_TWICE_BY_KEY}"),  # others have no keys
        *[At(f"{part}.*.recovery_s", "crash, *, recovery, s", _recovery_s) for part in ("crash", "crash-default")],
        At("roll.lost", "roll, requests lost"),
        At("roll.p99_ms", "roll, p99, s", lambda ms: ms / 1e3),
        At("roll.roll_s", "roll, s"),
        *[one for part, model in MODES.items() for one in _sides(f"{part}.loads.*.*", f"{model}, *, *")],
        *[
            From(
                f"{model}, *, exactly_once over at_least_once",
                (f"{model}, *, exactly_once, req/s", f"{model}, *, at_least_once, req/s"),
            )
            for model in MODES.values()
        ],
        *_sides("before.loads.*.*", "*, side *"),
        From("*, now over before", ("*, side now, req/s", "*, side before, req/s")),
    ),
)
_COLUMNS = ["req/s", *[f"{kind}, µs a record" for kind in PROCESSES], "ratio of req/s"]


def _side(name: str) -> list[str]:
    return [f"{{{name}, req/s}}", *[f"{{{name}, {kind} µs a record}}" for kind in PROCESSES]]


def _crash(name: str) -> list[str]:
    return [f"{{crash, {service}, {name}}}" for service in SERVICES]


FAILURES = Grid(
    ["", *SERVICES],
    [
        [
            "1 % poison: share of good requests unanswered",
            *[f"{{poison, {service}, good requests unanswered, share}}" for service in SERVICES],
        ],
        *[[f"kill -9 twice: {name}", *_crash(name)] for name in (*CRASH_FIGURES, _TWICE_BY_KEY)],
        ["kill -9 twice: longest until every partition is answered again, s", *_crash("recovery, s")],
        ["rolling restart: requests lost", "{roll, requests lost}", "", ""],
        ["rolling restart: p99 of the whole roll, s", "{roll, p99, s}", "", ""],
        ["rolling restart: seconds", "{roll, s}", "", ""],
    ],
)
MODES_GRID = Grid(
    ["16 partitions", "delivery", *_COLUMNS],
    [
        [work, mode, *_side(f"{work}, {mode}"), ratio]
        for work in ("null engine, a record each", "null engine, 64 a record", "all-MiniLM-L6-v2, a record each")
        for mode, ratio in (("at_least_once", ""), ("exactly_once", f"{{{work}, exactly_once over at_least_once}}"))
    ],
)


BEFORE_GRID = Grid(
    ["null engine", "worker of", *_COLUMNS],
    [
        [load, commit, *_side(f"{load}, side {side}"), ratio]
        for load in ("a record each", "64 a record")
        for commit, side, ratio in (
            ("the earlier commit", "before", ""),
            ("this commit", "now", f"{{{load}, now over before}}"),
        )
    ],
)
TABLES = {
    "delivery-failures": Table(SUITE, ["poison", "crash", "crash-default", "roll"], [FAILURES]),
    "delivery-modes": Table(SUITE, list(MODES), [MODES_GRID]),
    "delivery-before": Table(SUITE, ["before"], [BEFORE_GRID]),
    "delivery-targets": Table(SUITE, PARTS, [Targets("delivery")]),
}
