"""The null engine through a real Kafka, beside a bare echo in the same run; and its memory."""

import dataclasses
import statistics
import threading
from typing import Any

from penstock.ops.bench.common.processes import rss_bytes
from penstock.ops.bench.common.setup import ROUNDS, Details, Setup
from penstock.ops.bench.contestants.echo import WAYS as ECHOES
from penstock.ops.bench.contestants.echo import bare_echo
from penstock.ops.bench.contestants.worker_fleet import FleetSpec, open_workers
from penstock.ops.bench.cpu.cpu_tables import WAYS
from penstock.ops.bench.load.load_bench import PROCESSES, with_costs
from penstock.ops.bench.load.loads import Load
from penstock.ops.kafka import KafkaBroker

_NUM_IDS = 15  # Banking77's mean
IN_FLIGHT = 5000
# Large batches and one lane, because there is no computation. All other settings are defaults; a cache hit would skip
# the pipeline, and by default there is no cache.
NULL_WORKER = ("--lanes", "1", "--max-batch-tokens", "65536", "--max-batch-sequences", "1024")
_WARM_S, _SECONDS = 0.7, 2.0
_MEMORY_SECONDS, _SAMPLE_S = 6.0, 0.25
_NUM_ECHOES = 50_000


def run_null(setup: Setup) -> Details:
    """Part `null`: requests a second, and processor time of each process, ours and the echo's in turn."""
    loads = [_load(way, setup.seconds(_SECONDS)) for way in WAYS]
    ours: dict[str, list[Any]] = {way: [] for way in WAYS}
    echoes: dict[str, list[Any]] = {way: [] for way in ECHOES}
    spec = FleetSpec("null", NULL_WORKER, members=1)
    with (
        KafkaBroker() as broker,
        open_workers(broker, setup.logs, "null", spec, None) as side,
        bare_echo(broker, "send", setup.logs) as send,
        bare_echo(broker, "batched", setup.logs) as batched,
    ):
        side.offer(loads[-1])  # warm-up
        for _ in range(ROUNDS):
            for load in loads:
                ours[load.name].append(with_costs(load, side.offer(load)))
            for way, measure in (("send", send), ("batched", batched)):
                echoes[way].append(measure(setup.count(_NUM_ECHOES)))
    cpu = {f"penstock, {way}": _cpu_us(rounds) for way, rounds in ours.items()}
    return {
        "in_flight": IN_FLIGHT,
        "garbage_collection_of_clients": "frozen heap, thresholds (50000, 50, 1000)",
        "worker_arguments": NULL_WORKER,
        "requests_per_s": {way: [one["requests_per_s"] for one in rounds] for way, rounds in ours.items()},
        "loads": ours,
        "echo": echoes,
        "cpu_us": cpu | {f"echo, {way}": _cpu_us(rounds) for way, rounds in echoes.items()},
    }


def run_memory(setup: Setup) -> Details:
    """Part `memory`: resident memory of the worker while requests pass, after a warm-up."""
    spec = FleetSpec("null", NULL_WORKER, members=1)
    samples: list[int] = []
    is_over = threading.Event()
    with KafkaBroker() as broker, open_workers(broker, setup.logs, "null", spec, None) as side:
        side.offer(_load(WAYS[1], _SECONDS))  # warm-up
        pid = side.watched()["member 0"]

        def sample() -> None:
            while not is_over.wait(_SAMPLE_S):
                samples.append(rss_bytes(pid))

        watching = threading.Thread(target=sample)
        watching.start()
        try:
            record = side.offer(_load(WAYS[1], setup.seconds(_MEMORY_SECONDS)))
        finally:
            is_over.set()
            watching.join()
    return {"rss_bytes": {"worker": samples}, "requests": record["sequences"]}


def _load(way: str, seconds: float) -> Load:
    """Calls of one sequence: `WAYS`."""
    is_shared = way == WAYS[0]
    load = Load(way, "ids", _NUM_IDS, _NUM_IDS, callers=IN_FLIGHT, batch_calls=is_shared, warm_s=_WARM_S)
    return dataclasses.replace(load, seconds=seconds)


def _cpu_us(rounds: list[Any]) -> dict[str, float]:
    """Median processor µs a request of each process."""
    return {process: statistics.median([one["cpu_us"][process] for one in rounds]) for process in PROCESSES}
