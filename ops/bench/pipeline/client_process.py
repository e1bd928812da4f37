"""One client process: `python -m penstock.ops.bench.pipeline.client_process <ClientSpec as JSON>`.

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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from penstock.ops.bench.pipeline.alarm import Alarm
from penstock.ops.bench.pipeline.call_times import CallTimes
from penstock.ops.bench.pipeline.loads import Load
from penstock.ops.bench.pipeline.payloads import calls
from penstock.producer import Client
from penstock.producer.errors import PenstockError
from penstock.producer.keywords import IsolationLevel
from penstock.worker.garbage_collection import calm_garbage_collection

_POOL_ROWS = 16_384  # more than are in flight of one client
_LONG_POOL_ROWS = 4096
_LONG = 200  # mean length from which the smaller pool is made, which takes a second less
_PROBE_TIMEOUT_S = 120.0


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


class LoadRun:
    """One load of one client."""

    def __init__(self, client: Client, load: Load, pool: Sequence[list[Any]], start: float) -> None:
        self._client = client
        self._load = load
        self._pool = itertools.cycle(pool)
        self._start = start
        self.calls: list[tuple[float, float, int, int]] = []
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
        load = self._load
        try:
            sequences = next(self._pool)
            texts, ids = (sequences, None) if load.payload == "texts" else (None, sequences)
            results = await self._client.map("embed", texts, ids=ids)
            failed = [type(result).__name__ for result in results if isinstance(result, PenstockError)]
        except Exception as error:  # any failure is a request without an answer
            failed = [type(error).__name__] * load.rows
        self.failures.update(failed)
        offset, finished = begun - self._start, time.perf_counter() - self._start
        self.calls.append((offset, finished, load.rows - len(failed), len(failed)))


async def serve(spec: ClientSpec) -> None:
    """Run loads until the end of standard input."""
    folder, loop = Path(spec.folder), asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        load = Load(**json.loads(line))
        pool = pool_of(load, spec)
        async with Client(
            bootstrap_servers=spec.bootstrap_servers,
            model=spec.served_name,
            timeout_s=load.timeout_s,
            batch_calls=load.batch_calls,
            max_in_flight=max(512, load.callers),
            isolation_level=spec.isolation_level,
        ) as client:
            await client.map("embed", ids=[[1, 2, 3]], timeout_s=_PROBE_TIMEOUT_S)  # waits until a worker answers
            calm_garbage_collection()
            _note(folder / f"ready-{spec.number}", {})
            start = float(await loop.run_in_executor(None, sys.stdin.readline))
            run = LoadRun(client, load, pool, start)
            await asyncio.sleep(max(0.0, start - time.perf_counter()))
            await (run.open(due_times(load, start, spec)) if load.is_open else run.closed())
        CallTimes.of(run.calls).write(folder / f"calls-{spec.number}.npy")
        lag_ms = float(np.percentile(run.lags_s, 99)) * 1e3 if run.lags_s else 0.0
        _note(folder / f"done-{spec.number}", {"failures": run.failures, "lag_p99_ms": lag_ms})


def pool_of(load: Load, spec: ClientSpec) -> list[list[Any]]:
    """Calls of this client, which no other client makes."""
    rows = _POOL_ROWS if (load.low + load.high) / 2 < _LONG else _LONG_POOL_ROWS
    model = None if spec.model is None else Path(spec.model)
    return calls(load.payload, load.low, load.high, load.rows, rows // load.rows, model, seed=spec.number)


def due_times(load: Load, start: float, spec: ClientSpec) -> list[float]:
    """This client's share of a Poisson process: times of its calls, to the end of the load."""
    rate_per_s = load.rate_per_s / load.rows / spec.num_clients
    random = np.random.default_rng([spec.number, int(load.rate_per_s)])
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
