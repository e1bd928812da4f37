"""Figures and tables of the kept runs of routes: rates in records a second, processor time a record in µs."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.ops.bench.common.measures import At, From, Suite
from penstock.ops.bench.common.tables import Grid, Table, Targets, each

PARTS = ("texts", "http", "null")
_REQUESTS = "MiniLM, requests, records/s"
_MODES = ("null, exactly_once, records/s", "null, at_least_once, records/s")
_MODELS = {"texts": "MiniLM", "http": "MiniLM", "null": "null"}

Details = Mapping[str, Any]


def _median(*path: str) -> Callable[[Sequence[Details]], float]:
    def of(rounds: Sequence[Details]) -> float:
        found: list[Any] = list(rounds)
        for key in path:
            found = [one[key] for one in found]
        return statistics.median(map(float, found))

    return of


SUITE = Suite(
    "routes",
    (
        *[At(f"{part}.loads.*", f"{model}, *, records/s", _median("records_per_s")) for part, model in _MODELS.items()],
        *[
            At(f"{part}.loads.*", f"{model}, *, µs a record", _median("cpu_us", "contestant"))
            for part, model in _MODELS.items()
        ],
        *[From(f"{one}, share of requests", (f"MiniLM, {one}, records/s", _REQUESTS)) for one in ("JSON", "Avro")],
        From("JSON, times *", ("MiniLM, *, records/s", "MiniLM, JSON, records/s"), lambda other, ours: ours / other),
        From("null, exactly_once over at_least_once", _MODES),
    ),
)
_RATES = Grid(
    ["one record each", "records/s", "processor time a record, µs"],
    each(["MiniLM, *", "null, *"], "*", "{*, records/s}", "{*, µs a record}"),
)
TABLES = {
    "routes": Table(SUITE, PARTS, [_RATES]),
    "routes-targets": Table(SUITE, PARTS, [Targets("routes")]),
}
