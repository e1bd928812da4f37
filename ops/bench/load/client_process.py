"""One client process: `python -m penstock.ops.bench.load.client_process <ClientSpec as JSON>`.

Two lines on standard input run a load: the load as JSON, which connects a client and makes its sequences, and then the
time to start (perf_counter, which all processes of a machine share). A file tells of each step, and holds the calls.
The end of standard input ends the process.
"""

import asyncio
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from penstock.ops.bench.load.alarm import Alarm
from penstock.ops.bench.load.call_times import CallTimes
from penstock.ops.bench.load.loads import Load
from penstock.ops.bench.load.payloads import is_poison, pool_of
from penstock.producer import Client
from penstock.producer.errors import PenstockError
from penstock.producer.keywords import IsolationLevel
from penstock.worker.garbage_collection import calm_garbage_collection

PENSTOCK = "load.client_process:connect"
UP_TIMEOUT_S = 120.0  # from its start until the other side answers

# One call with its sequences; returns the name of the error of each sequence that has no answer. May raise instead.
Call = Callable[[list[Any]], Awaitable[list[str]]]


@dataclass(frozen=True, slots=True)
class ClientSpec:
    """Facts that all loads of a client process share."""

    bootstrap_servers: str
    served_name: str
    model: str | None  # checkpoint; None: the null engine
    folder: str  # of its files
    number: int
    num_clients: int
    isolation_level: IsolationLevel = "read_uncommitted"  # of replies
    max_in_flight: int = 512  # records, or as many as a closed loop has callers
    connect: str = PENSTOCK  # module:function of ops.bench, as `connect` below: the contestant's client


@asynccontextmanager
async def connect(spec: ClientSpec, load: Load) -> AsyncIterator[Call]:
    """The product's client, once a worker answers."""
    async with Client(
        bootstrap_servers=spec.bootstrap_servers,
        model=spec.served_name,
        timeout_s=load.timeout_s,
        batch_calls=load.batch_calls,
        max_in_flight=max(spec.max_in_flight, load.callers),
        isolation_level=spec.isolation_level,
    ) as client:

        async def call(sequences: list[Any]) -> list[str]:
            texts, ids = (None, sequences) if load.payload == "ids" else (sequences, None)
            results = await client.map("embed", texts, ids=ids)
            return [type(result).__name__ for result in results if isinstance(result, PenstockError)]

        await client.map("embed", ids=[[1, 2, 3]], timeout_s=UP_TIMEOUT_S)
        yield call


class LoadRun:
    """One load of one client."""

    def __init__(self, call: Call, load: Load, pool: Sequence[list[Any]], start: float) -> None:
        self._send = call
        self._load = load
        self._pool = itertools.cycle(pool)
        self._start = start
        self.calls: list[tuple[float, float, int, int]] = []  # without those of poison
        self.poison: Counter[str] = Counter()  # "answered" or the error -> texts
        self.failures: Counter[str] = Counter()
        self.lags_s: list[float] = []  # from the time at which a call was due to the time at which it was made

    async def closed(self) -> None:
        """`callers` at once, each sending its next call when the last one was answered."""
        await asyncio.gather(*[self._caller() for _ in range(self._load.callers)])

    async def _caller(self) -> None:
        end = self._start + self._load.span_s
        while (now := time.perf_counter()) < end:
            await self._call(now)

    async def open(self, due: Sequence[float]) -> None:
        """A call at each time of `due`, independent of the answers."""
        tasks: set[asyncio.Task[None]] = set()
        with Alarm() as alarm:
            for moment in due:
                await alarm.until(moment)
                self.lags_s.append(time.perf_counter() - moment)
                task = asyncio.create_task(self._call(moment))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)

    async def _call(self, begun: float) -> None:
        """One call, whose latency counts from `begun`."""
        sequences = next(self._pool)
        try:
            failed = await self._send(sequences)
        except Exception as error:  # any failure is a request without an answer
            failed = [type(error).__name__] * len(sequences)
        if self._load.poison_every and is_poison(sequences[0]):
            self.poison[failed[0] if failed else "answered"] += 1
            return
        if failed:
            self.failures.update(failed)
        offset, finished = begun - self._start, time.perf_counter() - self._start
        self.calls.append((offset, finished, len(sequences) - len(failed), len(failed)))


async def serve(spec: ClientSpec) -> None:
    """Run loads until the end of standard input."""
    module, function = spec.connect.split(":")
    connected: Callable[[ClientSpec, Load], AbstractAsyncContextManager[Call]] = getattr(
        import_module(f"penstock.ops.bench.{module}"), function
    )
    folder, loop = Path(spec.folder), asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        load = Load(**json.loads(line))
        pool = pool_of(load, None if spec.model is None else Path(spec.model), spec.number, spec.num_clients)
        async with connected(spec, load) as call:
            calm_garbage_collection()
            _note(folder / f"ready-{spec.number}", {})
            start = float(await loop.run_in_executor(None, sys.stdin.readline))
            run = LoadRun(call, load, pool, start)
            await asyncio.sleep(max(0.0, start - time.perf_counter()))
            await (run.open(due_times(load, start, spec.number, spec.num_clients)) if load.is_open else run.closed())
        CallTimes.of(run.calls).write(folder / f"calls-{spec.number}.npy")
        lag_ms = float(np.percentile(run.lags_s, 99)) * 1e3 if run.lags_s else 0.0
        _note(folder / f"done-{spec.number}", {"failures": run.failures, "poison": run.poison, "lag_p99_ms": lag_ms})


def due_times(load: Load, start: float, number: int, num_clients: int) -> list[float]:
    """One client's share of a Poisson process: times of its calls, to the end of the load."""
    rate_per_s = load.rate_per_s / load.rows / num_clients
    random = np.random.default_rng([number, int(load.rate_per_s)])
    gaps = random.exponential(1 / rate_per_s, int(rate_per_s * load.span_s * 1.5) + 50)
    due = start + np.cumsum(gaps)
    return list(due[due < start + load.span_s].tolist())


def _note(path: Path, content: dict[str, Any]) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content), encoding="utf-8")
    temporary.replace(path)


if __name__ == "__main__":
    uvloop.run(serve(ClientSpec(**json.loads(sys.argv[1]))))
