"""A load whose requests are told apart: `python -m penstock.ops.bench.delivery.call_load <CallSpec as JSON>`.

It prints a CallResult. Beside the load generator of the CPU benchmarks, it counts poison and good requests apart, and
says when the load began.
"""

import asyncio
import contextlib
import dataclasses
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from penstock.ops.bench.cpu.load_generator import Call, Recorder, connect, make_items, offer, warm_up_of
from penstock.ops.bench.cpu.load_spec import LoadSpec, percentiles_ms
from penstock.ops.bench.delivery.stand_in import is_poison, with_poison
from penstock.producer.errors import PenstockError
from penstock.worker.garbage_collection import calm_garbage_collection

_UP_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class CallSpec:
    """One load."""

    load: Mapping[str, Any]  # fields of LoadSpec
    started: str  # file that gets the Unix time at which the measured load began
    poison_every: int = 0  # of the measured texts; 0: none is poison


@dataclass(frozen=True, slots=True)
class CallResult:
    """Requests of one load, by their outcome."""

    started: float  # Unix time
    wall_s: float
    good: int
    good_unanswered: int
    poison: int
    poison_answered: int
    failures: Mapping[str, int]  # kind of error -> requests
    latency_ms: Mapping[str, float | None]  # of good requests


class OutcomeRecorder(Recorder):
    """Counts poison and good requests apart."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: Counter[tuple[bool, bool]] = Counter()  # (is poison, is answered)
        self.good_latencies_s: list[float] = []

    async def timed(self, call: Call, item: Any, since: float) -> None:
        own = Recorder()
        await own.timed(call, item, since)
        latency_s = own.latencies_s[0]
        bad = isinstance(item, str) and is_poison(item)
        self.failures.update(own.failures)
        self.outcomes[bad, math.isfinite(latency_s)] += 1
        if not bad:
            self.good_latencies_s.append(latency_s)


async def measure(spec: CallSpec) -> CallResult:
    """Connect, warm up, measure."""
    load = LoadSpec(**spec.load)
    recorder = OutcomeRecorder()
    async with contextlib.AsyncExitStack() as stack:
        call = await connect(load, stack)
        items = make_items(load)
        warm, measured = items[: load.warm_up], items[load.warm_up :]
        if spec.poison_every:
            measured = with_poison(measured, spec.poison_every)
        await _answered(call, warm[0])
        await offer(warm_up_of(load), call, warm, Recorder())
        calm_garbage_collection()
        started, began = time.time(), time.perf_counter()
        await asyncio.to_thread(Path(spec.started).write_text, repr(started), encoding="utf-8")
        await offer(load, call, measured, recorder)
        wall_s = time.perf_counter() - began
    return _result(recorder, started, wall_s)


async def _answered(call: Call, item: Any) -> None:
    """Wait until the other side is up."""
    async with asyncio.timeout(_UP_TIMEOUT_S):
        while True:
            with contextlib.suppress(TimeoutError, PenstockError):
                await call(item)
                return


def _result(recorder: OutcomeRecorder, started: float, wall_s: float) -> CallResult:
    found = recorder.outcomes
    return CallResult(
        started=started,
        wall_s=wall_s,
        good=found[False, True] + found[False, False],
        good_unanswered=found[False, False],
        poison=found[True, True] + found[True, False],
        poison_answered=found[True, True],
        failures=dict(recorder.failures),
        latency_ms=percentiles_ms(recorder.good_latencies_s),
    )


if __name__ == "__main__":
    result = uvloop.run(measure(CallSpec(**json.loads(sys.argv[1]))))
    print(json.dumps(dataclasses.asdict(result)))
