"""The client of the serving benchmark, a process of its own: `kafka_client <ClientSpec as JSON>` prints what it found.

It looks for the critical point, or runs at given rates.

Open loop: a request is sent when it is due, whatever became of those before, each by a call of its own; calls of one
turn of the event loop share records, as the client does by default. Latencies count from the moment at which a request
was due, so a stall of anything, this process included, is in every latency that it delays.
"""

import asyncio
import json
import math
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import uvloop

from penstock.engine.types import Int32Array
from penstock.ops.bench.common.processes import cpu_s
from penstock.ops.bench.common.runs import finite
from penstock.ops.bench.serving.loads.arrivals import Floats, poisson
from penstock.ops.bench.serving.loads.drive import random_ids
from penstock.ops.bench.serving.loads.outcome import Outcome
from penstock.ops.bench.serving.parts.critical import critical_point
from penstock.producer import Client
from penstock.worker.garbage_collection import calm_garbage_collection

_START_TIMEOUT_S = 180.0  # of the worker: it loads, and calibrates if it is the first
_FEWEST_REQUESTS = 60
_LEAD_S = 0.01
_WARM_UP_SHARE = 0.5  # of the first guess
_MAX_IN_FLIGHT = 65_536  # records: an open loop is not held back


@dataclass(frozen=True, slots=True)
class ClientSpec:
    """The search: connection, requests, limits."""

    connection: dict[str, Any]  # of the client: bootstrap_servers, model, and what the broker needs
    lengths: list[int]  # tokens of the requests, from the start again when they run out
    vocab_size: int
    slo_s: float
    timeout_s: float  # of a call, which is the deadline that it carries
    guess_per_s: float
    seconds: float  # of a run
    seed: int = 0
    rates_per_s: list[float] = field(default_factory=list)  # to run at, each once; none: look for the critical point


class ConnectedClient:
    """Sends the requests of each run through one client that is connected already."""

    def __init__(self, client: Client, spec: ClientSpec) -> None:
        self._client = client
        self._spec = spec
        self.busy = 0.0  # share of one core that this process used in the last run

    async def run(self, rate_per_s: float, times: float) -> Outcome:
        """Requests at this rate, to the last answer."""
        spec = self._spec
        count = max(_FEWEST_REQUESTS, round(rate_per_s * spec.seconds * times))
        arrival = poisson(rate_per_s, count, spec.seed)
        lengths = np.resize(np.array(spec.lengths), count)
        # Other ids in each run: requests that are equal are computed once.
        ids = random_ids(lengths, spec.vocab_size, time.monotonic_ns())
        finish, failures = np.full(count, math.nan), Counter[str]()
        user, system = cpu_s(os.getpid())
        began = time.monotonic()
        await self._send(arrival, ids, finish, failures)
        self.busy = (sum(cpu_s(os.getpid())) - user - system) / (time.monotonic() - began)
        return Outcome(arrival, np.full(count, math.nan), finish, failures)

    async def _send(self, arrival: Floats, ids: list[Int32Array], finish: Floats, failures: Counter[str]) -> None:
        epoch = time.monotonic() + _LEAD_S

        async def call(index: int) -> None:
            try:
                await self._client.embed(ids=[ids[index]], timeout_s=self._spec.timeout_s)
            except Exception as error:  # any failure is a request without an answer
                failures[type(error).__name__] += 1
            else:
                finish[index] = time.monotonic() - epoch

        calls = []
        for index, due in enumerate(arrival.tolist()):
            delay_s = epoch + due - time.monotonic()
            if delay_s > 0:
                await asyncio.sleep(delay_s)
            calls.append(asyncio.create_task(call(index)))
        await asyncio.gather(*calls)


def measure(spec: ClientSpec) -> dict[str, Any]:
    """Connect, wait for the worker, warm up, and find its critical point or run at the rates of `spec`."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        client = Client(**spec.connection, max_in_flight=_MAX_IN_FLIGHT)
        runner.run(client.start())
        try:
            runner.run(client.embed(ids=[[1, 2]], timeout_s=_START_TIMEOUT_S))
            connected = ConnectedClient(client, spec)
            runner.run(connected.run(_WARM_UP_SHARE * spec.guess_per_s, 1.0))
            calm_garbage_collection()
            if spec.rates_per_s:
                outcomes = [runner.run(connected.run(rate, 1.0)) for rate in spec.rates_per_s]
                return {"runs": [outcome.figures(spec.slo_s) for outcome in outcomes]}
            found = critical_point(
                lambda rate, times: runner.run(connected.run(rate, times)),
                spec.guess_per_s,
                spec.slo_s,
            )
        finally:
            runner.run(client.close())
    return {**found, "client_busy": connected.busy}


def main() -> None:
    spec = ClientSpec(**json.loads(sys.argv[1]))
    print(json.dumps(finite(measure(spec))))


if __name__ == "__main__":
    main()
