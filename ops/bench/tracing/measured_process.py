"""A worker and a client at one level: `python -m penstock.ops.bench.tracing.measured_process SPEC`.

The argument is a `Spec` as JSON, and the output a `Measured`.
"""

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import uvloop

from penstock.engine import NullEngine
from penstock.ops.bench.cache.in_process import MODEL, in_process_worker, random_ids, request_values
from penstock.ops.bench.tracing.loopback_client import loopback_client
from penstock.worker import WorkerSettings
from penstock.worker.garbage_collection import calm_garbage_collection
from penstock.worker.resolved_settings import resolve
from penstock.worker.telemetry.logs import configure_logs
from penstock.worker.telemetry.traces import open_traces

if TYPE_CHECKING:
    from penstock.ops.bench.tracing.counted_provider import CountedProvider

_LIBRARY = "opentelemetry"
_CALLS_AT_ONCE = 100
_SWITCH_INTERVAL_S = 0.0001  # of the interpreter, as a worker sets it


@dataclass(frozen=True, slots=True)
class Spec:
    """The work of one process."""

    is_installed: bool  # whether OpenTelemetry can be imported
    share: float | None  # of requests whose trace is recorded; None: tracing is off
    endpoint: str  # of the collector
    passes: int
    worker_requests: int  # of each pass
    client_requests: int


@dataclass(frozen=True, slots=True)
class Cost:
    """One pass over requests with one sequence each."""

    requests: int
    cpu_s: float  # of all threads of the process, the export of recorded spans included
    spans: int  # that were exported


@dataclass(frozen=True, slots=True)
class Measured:
    """All passes of each side but the first, which warms up."""

    worker: Sequence[Cost]
    client: Sequence[Cost]
    imported: bool  # whether the process has imported OpenTelemetry


class NotInstalled:
    """Finder of modules that hides OpenTelemetry."""

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        """Called by the import system."""
        if name.split(".")[0] == _LIBRARY:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def main() -> None:
    """Measure, and print."""
    spec = Spec(**json.loads(sys.argv[1]))
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    configure_logs("json", "error")
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        del os.environ[name]
    if not spec.is_installed:
        sys.meta_path.insert(0, NotInstalled())
    print(json.dumps(asdict(uvloop.run(_measure(spec)))))


async def _measure(spec: Spec) -> Measured:
    provider = None if spec.share is None else _provider(spec.endpoint, spec.share)
    worker = await _worker(spec, provider)
    client = await _client(spec, provider)
    return Measured(worker, client, _LIBRARY in sys.modules)


def _provider(endpoint: str, share: float) -> "CountedProvider":
    from penstock.ops.bench.tracing.counted_provider import CountedProvider

    return CountedProvider(endpoint, share)


async def _worker(spec: Spec, provider: "CountedProvider | None") -> list[Cost]:
    """The worker's own stages. Senders record the share of the traces, and say so in each record's header."""
    info = NullEngine(name=MODEL).info
    settings = resolve(WorkerSettings.model_validate({"model": MODEL, "lanes": 1}), info)
    traceparent = None if spec.share is None else _headers(spec.share)
    found = []
    async with AsyncExitStack() as stack:
        traces = await stack.enter_async_context(open_traces(settings, info, 0))
        stages = await stack.enter_async_context(in_process_worker(None, traces=traces, traceparent=traceparent))
        for number in range(spec.passes + 1):
            values = request_values(random_ids(spec.worker_requests, seed=number), per_record=1)
            one = await stages.run(values, None if provider is None else provider.flush)
            found.append(Cost(one.num_sequences, one.cpu_s, 0 if provider is None else provider.take_count()))
    return found[1:]


def _headers(share: float) -> Callable[[], bytes]:
    """Makes `traceparent` headers of new traces."""
    generator = random.Random(1)

    def traceparent() -> bytes:
        trace_id, span_id = generator.getrandbits(128) | 1, generator.getrandbits(64) | 1
        return b"00-%032x-%016x-%02x" % (trace_id, span_id, generator.random() < share)

    return traceparent


async def _client(spec: Spec, provider: "CountedProvider | None") -> list[Cost]:
    """Calls outside of any span: the client's own sampler decides."""
    found = []
    async with loopback_client() as client:
        for _ in range(spec.passes + 1):
            calm_garbage_collection()
            started = time.process_time()
            for first in range(0, spec.client_requests, _CALLS_AT_ONCE):
                numbers = range(first, min(first + _CALLS_AT_ONCE, spec.client_requests))
                await asyncio.gather(*[client.embed(ids=[[number + 1, 7]]) for number in numbers])
            if provider is not None:
                provider.flush()
            cpu_s = time.process_time() - started
            found.append(Cost(spec.client_requests, cpu_s, 0 if provider is None else provider.take_count()))
    return found[1:]


if __name__ == "__main__":
    main()
