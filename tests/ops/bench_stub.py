"""A suite of parts that measure nothing. The processes that run its parts import this file: it loads no library."""

import os
from typing import Any

from penstock.ops.bench.common.part_bench import PartBench
from penstock.ops.bench.common.suite import SCALE, BenchSuite, Option, Part
from penstock.ops.bench.serving.policies import DEFAULT


class Shared(PartBench):
    """The bench of `STUB`. Its process ends in part `died`."""

    def machine(self) -> dict[str, Any]:
        return {"gpu": "NVIDIA Stub"}


def loads(bench: PartBench) -> dict[str, Any]:
    row = {"system": DEFAULT, "load": 0.9, "goodput_per_s": 80.0, "offered_per_s": 100.0}
    return {"lengths": "2-100", "rows": [{**row, "scale": bench.options["scale"]}]}


def failed(bench: PartBench, why: str) -> None:
    with bench.guarded("theirs", "here"):
        raise ValueError("no figure of theirs")
    raise RuntimeError(why)


def died(_: PartBench) -> None:
    os._exit(9)


_HERE = "tests.ops.bench_stub"
STUB = BenchSuite(
    name="serving-kafka",
    about="A stub.",
    bench=f"{_HERE}:Shared",
    tables="penstock.ops.bench.serving.policies:TABLES",
    parts={
        "failed": Part(f"{_HERE}:failed", 5, ("why it failed",)),
        "died": Part(f"{_HERE}:died", 5),
        "loads": Part(f"{_HERE}:loads", 5),
        "beside": Part(f"{_HERE}:loads", 5, needs="before"),
    },
    time_limit_s=300.0,
    options=[SCALE, Option("before", None, "a commit")],
)
