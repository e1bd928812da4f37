"""Table of the kept runs of `several_gpus`."""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.ops.bench.common.kept_tables import Measures, of_each_machine, spreads
from penstock.ops.bench.common.markdown import table
from penstock.ops.bench.common.runs import Run

SUITE = "cellular-gpus"
PARTS = ("lstm", "tree")
ONE = "one GPU"
WAYS = (ONE, "two GPUs, a process each", "two GPUs, one scheduler")


def throughput() -> str:
    """Table `cellular-gpus`: requests a second of each way, the same over one GPU's, and the host's time for each."""
    return of_each_machine(SUITE, PARTS, _throughput)


def _throughput(runs: Sequence[Run]) -> str:
    found = spreads(runs, lambda record: _measures(record["parts"]))
    rows = [
        [f"{part}, {way}", *(str(found[f"{part} {way} {name}"]) for name in ("rate", "times", "cpu"))]
        for part in PARTS
        for way in WAYS
    ]
    return table(["model and fleet", "req/s", "times one GPU", "processor time, µs a request"], rows)


def _measures(parts: Mapping[str, Any]) -> Measures:
    """By part, way and name: "lstm one GPU rate"."""
    found: dict[str, float] = {}
    for part in PARTS:
        for way in WAYS:
            name, rate = f"{part} {way}", _rate(parts[part][way])
            found[f"{name} rate"] = rate
            found[f"{name} times"] = rate / _rate(parts[part][ONE])
            found[f"{name} cpu"] = sum(one["process_cpu_us"] * one["requests_per_s"] for one in parts[part][way]) / rate
    return found


def _rate(processes: Sequence[Mapping[str, Any]]) -> float:
    return sum(float(one["requests_per_s"]) for one in processes)
