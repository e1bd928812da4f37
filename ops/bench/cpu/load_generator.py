"""The load generator: a process of its own.

`python -m penstock.ops.bench.cpu.load_generator <LoadSpec as JSON>` prints a LoadResult.

The latency of a Poisson arrival counts from the time at which the request was due. A stall of the pipeline, or of this
process, is therefore part of every latency it delays (no coordinated omission).
"""

import asyncio
import contextlib
import dataclasses
import json
import math
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from penstock.ops.bench.common.processes import cpu_s, rss_bytes
from penstock.ops.bench.common.sampler import Sampler
from penstock.ops.bench.common.setup import shuffled_texts
from penstock.ops.bench.cpu.load_spec import RSS_INTERVAL_S, LoadResult, LoadSpec, percentiles_ms
from penstock.ops.bench.cpu.plain_client import PlainClient
from penstock.producer import Client
from penstock.worker.garbage_collection import calm_garbage_collection

_NUM_IDS = 15  # Banking77's mean
_WARM_UP_CALLERS = 8

Call = Callable[[Any], Awaitable[object]]


class Recorder:
    """Latencies and failures of one load."""

    def __init__(self) -> None:
        self.latencies_s: list[float] = []
        self.failures: Counter[str] = Counter()

    async def timed(self, call: Call, item: Any, since: float) -> None:
        """Run one request. Its latency counts from `since` (perf_counter)."""
        try:
            await call(item)
        except Exception as error:  # any failure is a request without an answer
            self.failures[type(error).__name__] += 1
            self.latencies_s.append(math.inf)
        else:
            self.latencies_s.append(time.perf_counter() - since)


async def closed_loop(call: Call, items: Sequence[Any], callers: int, recorder: Recorder) -> None:
    """`callers` at once, each sending its next item when the last one was answered."""
    waiting = iter(items)

    async def call_in_turn() -> None:
        for item in waiting:
            await recorder.timed(call, item, time.perf_counter())

    await asyncio.gather(*[call_in_turn() for _ in range(callers)])


async def poisson(call: Call, items: Sequence[Any], rate_per_s: float, recorder: Recorder) -> None:
    """Open loop: exponential gaps, independent of the answers."""
    due = time.perf_counter() + np.cumsum(np.random.default_rng(0).exponential(1 / rate_per_s, len(items)))
    tasks = []
    for item, moment in zip(items, due.tolist(), strict=True):
        delay_s = moment - time.perf_counter()
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        tasks.append(asyncio.create_task(recorder.timed(call, item, moment)))
    await asyncio.gather(*tasks)


async def offer(spec: LoadSpec, call: Call, items: Sequence[Any], recorder: Recorder) -> None:
    """The load that `spec` asks for."""
    match spec.arrivals:
        case "closed":
            await closed_loop(call, items, spec.in_flight, recorder)
        case "poisson":
            await poisson(call, items, spec.rate_per_s, recorder)
        case "bulk":
            await closed_loop(call, bulk_calls(items, spec.in_flight), spec.in_flight, recorder)
        case _:
            raise ValueError(f"No such arrivals: {spec.arrivals!r}")


def bulk_calls(items: Sequence[Any], callers: int) -> list[Sequence[Any]]:
    """Lists of at most 1/`callers` of the data, in turn, so that no text is in flight twice."""
    size = -(-len(set(items)) // callers)
    return [items[start : start + size] for start in range(0, len(items), size)]


async def measure(spec: LoadSpec) -> LoadResult:
    """Connect, warm up, measure."""
    async with contextlib.AsyncExitStack() as stack:
        call = await connect(spec, stack)
        items = make_items(spec)
        warm, measured = items[: spec.warm_up], items[spec.warm_up :]
        await call(warm[0] if spec.arrivals != "bulk" else warm[:1])  # waits until the other side is up
        await offer(warm_up_of(spec), call, warm, Recorder())
        calm_garbage_collection()
        return await _measured(spec, call, measured)


def warm_up_of(spec: LoadSpec) -> LoadSpec:
    """The load before a measured one."""
    if spec.arrivals == "poisson":
        return dataclasses.replace(spec, arrivals="closed", in_flight=_WARM_UP_CALLERS)
    return spec


async def _measured(spec: LoadSpec, call: Call, items: Sequence[Any]) -> LoadResult:
    watched = {"client": os.getpid(), **spec.watch}
    rss: dict[str, list[int]] = {name: [] for name in watched}
    recorder = Recorder()
    sampler = _start_profile(spec)
    watcher = asyncio.create_task(_watch_rss(watched, rss))
    before = {name: cpu_s(pid) for name, pid in watched.items()}
    started = time.perf_counter()
    await offer(spec, call, items, recorder)
    wall_s = time.perf_counter() - started
    after = {name: cpu_s(pid) for name, pid in watched.items()}
    watcher.cancel()
    if sampler is not None and spec.profile is not None:
        sampler.stop()
        sampler.write(Path(spec.profile))
    return LoadResult(
        num_requests=len(items),
        failures=dict(recorder.failures),
        wall_s=wall_s,
        latency_ms=percentiles_ms(recorder.latencies_s),
        cpu_user_s={name: after[name][0] - before[name][0] for name in watched},
        cpu_system_s={name: after[name][1] - before[name][1] for name in watched},
        rss_bytes=rss,
    )


def _start_profile(spec: LoadSpec) -> Sampler | None:
    if spec.profile is None:
        return None
    sampler = Sampler()
    sampler.start()
    os.kill(spec.watch["worker"], signal.SIGUSR1)
    return sampler


async def _watch_rss(watched: dict[str, int], rss: dict[str, list[int]]) -> None:
    while True:
        for name, pid in watched.items():
            rss[name].append(rss_bytes(pid))
        await asyncio.sleep(RSS_INTERVAL_S)


async def connect(spec: LoadSpec, stack: contextlib.AsyncExitStack) -> Call:
    """A connected client's call, with one item of the load."""
    if spec.target == "plain":
        return (await stack.enter_async_context(PlainClient(spec.bootstrap_servers, spec.timeout_s))).call
    if spec.target != "penstock":
        raise ValueError(f"No such target: {spec.target!r}")
    # One at a time, `in_flight` is the number of records; in bulk and in an open loop the client's default holds.
    bound: dict[str, Any] = {"max_in_flight": spec.in_flight} if spec.arrivals == "closed" else {}
    client = await stack.enter_async_context(
        Client(
            bootstrap_servers=spec.bootstrap_servers,
            model=spec.model,
            timeout_s=spec.timeout_s,
            batch_calls=spec.batch_calls,
            **bound,
        )
    )
    if spec.payload == "ids":
        return lambda ids: client.embed(ids=[ids])
    return client.embed


def make_items(spec: LoadSpec) -> list[Any]:
    """Warm-up and measured requests, in this order."""
    count = spec.warm_up + spec.num_requests
    if spec.payload == "text":
        return shuffled_texts(count)
    ids = np.random.default_rng().integers(1000, 30_000, (count, _NUM_IDS))
    return list(ids)


def main() -> None:
    spec = LoadSpec(**json.loads(sys.argv[1]))
    print(json.dumps(dataclasses.asdict(uvloop.run(measure(spec)))))


if __name__ == "__main__":
    main()
