"""The null engine through a real Kafka, beside a bare echo in the same run; its processor time by stage; its memory."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.ops.bench.common.comparison import Comparison, Grid, PartResult
from penstock.ops.bench.common.processes import Service, run_once
from penstock.ops.bench.common.sampler import read_samples
from penstock.ops.bench.common.setup import ROUNDS, Setup
from penstock.ops.bench.common.stages import function_of, split_cost
from penstock.ops.bench.cpu.cpu_tables import WAYS, largest_change
from penstock.ops.bench.cpu.kafka_load import offer_load, worker
from penstock.ops.bench.cpu.load_spec import LoadResult
from penstock.ops.kafka import KafkaBroker

IN_FLIGHT = 5000
_BATCHES_CALLS = dict(zip(WAYS, (True, False), strict=True))  # whether the client puts concurrent calls into one record
# Large batches and one lane, because there is no computation. All other settings are defaults; a cache hit would skip
# the pipeline, and by default there is no cache.
NULL_WORKER = {"model": "null", "max_batch_tokens": 65_536, "max_batch_sequences": 1024, "lanes": 1}
_NUM_REQUESTS = 25_000
_NUM_ECHOES = 50_000
_WARM_UP = 6_000
_PROFILED_REQUESTS = 30_000
_MEMORY_REQUESTS = 60_000


def run_null(setup: Setup) -> PartResult:
    """Part `null`: requests a second, and processor time of each process, ours and the echo's in turn."""
    ours: dict[str, list[LoadResult]] = {name: [] for name in WAYS}
    echoes: dict[str, list[dict[str, Any]]] = {"send": [], "batched": []}
    with (
        KafkaBroker() as broker,
        worker(setup, broker, NULL_WORKER) as null_worker,
        _echo_worker(setup, broker, "send") as echo,
        _echo_worker(setup, broker, "batched") as batched_echo,
    ):
        for _ in range(ROUNDS):
            for name, batch_calls in _BATCHES_CALLS.items():
                ours[name].append(_null_load(setup, broker, null_worker, _NUM_REQUESTS, batch_calls=batch_calls))
            echoes["send"].append(_echo_load(setup, broker, echo, "send"))
            echoes["batched"].append(_echo_load(setup, broker, batched_echo, "batched"))
    echo_rates = {name: statistics.median(r["requests_per_s"] for r in results) for name, results in echoes.items()}
    comparisons = [_compare(name, results, echo_rates) for name, results in ours.items()]
    cpu: dict[str, dict[str, float]] = {}
    for process in ("client", "worker", "broker"):
        for name, loads in ours.items():
            cpu.setdefault(f"penstock, {name}", {})[process] = statistics.median(load.cpu_us(process) for load in loads)
        for name, results in echoes.items():
            used_us = statistics.median(result["cpu_us"][process] for result in results)
            cpu.setdefault(f"echo, {name}", {})[process] = used_us
    grid = Grid(
        "processor µs a request",
        ("pipeline", "client", "worker", "broker"),
        [(name, *by_process.values()) for name, by_process in cpu.items()],
    )
    details = {
        "in_flight": IN_FLIGHT,
        "garbage_collection_of_clients": "frozen heap, thresholds (50000, 50, 1000)",
        "worker_settings": NULL_WORKER,
        "requests_per_s": {name: [load.requests_per_s for load in loads] for name, loads in ours.items()},
        "failures": {name: [load.failures for load in loads] for name, loads in ours.items()},
        "latency_ms": {name: [load.latency_ms for load in loads] for name, loads in ours.items()},
        "echo": echoes,
        "cpu_us": cpu,
    }
    return PartResult(comparisons, [grid], details)


def _compare(way: str, loads: Sequence[LoadResult], echo_rates: Mapping[str, float]) -> Comparison:
    rate = statistics.median(load.requests_per_s for load in loads)
    return Comparison(
        work=f"null engine, calls of one sequence of 15 ids, {way}, client → Kafka → worker → Kafka → client",
        ours=f"{rate:,.0f} req/s",
        baseline=f"bare aiokafka echo, a record each, {echo_rates['send']:,.0f} req/s",
        ratio=rate / echo_rates["send"],
        floor=f"echo with create_batch {echo_rates['batched']:,.0f} req/s",
        floor_share=rate / echo_rates["batched"],
    )


def run_profile(setup: Setup) -> PartResult:
    """Part `profile`: the null engine's processor time by stage, for both ways; a run of its own for the sampling."""
    grids: list[Grid] = []
    details: dict[str, Any] = {"requests": setup.count(_PROFILED_REQUESTS)}
    for way, batch_calls in _BATCHES_CALLS.items():
        found, details[way] = _profile(setup, way, batch_calls)
        grids += found
    return PartResult((), grids, details)


def _profile(setup: Setup, way: str, batch_calls: bool) -> tuple[list[Grid], dict[str, Any]]:
    samples = {name: setup.logs / f"{name}.{batch_calls}.samples.json" for name in ("worker", "client")}
    count = setup.count(_PROFILED_REQUESTS)
    with KafkaBroker() as broker, worker(setup, broker, NULL_WORKER, profile=samples["worker"]) as null_worker:
        result = _null_load(
            setup, broker, null_worker, _PROFILED_REQUESTS, batch_calls=batch_calls, profile=samples["client"]
        )
    grids = []
    details: dict[str, Any] = {"requests_per_s": result.requests_per_s}
    for name, path in samples.items():
        seen = read_samples(path)
        total_us = result.cpu_us(name)
        user_us = result.cpu_user_s[name] / count * 1e6
        stages = split_cost(seen, total_us, count)
        grids.append(
            Grid(
                f"{name}, {way}: {total_us:.1f} µs a request ({user_us:.1f} user, {total_us - user_us:.1f} system), "
                f"{seen.stacks.total()} samples",
                ("stage", "µs a request", "share"),
                [(stage, us, us / total_us) for stage, us in stages],
            )
        )
        details[name] = {
            "cpu_us": total_us,
            "cpu_user_us": user_us,
            "samples": seen.stacks.total(),
            "stages_us": dict(stages),
            "functions_us": dict(split_cost(seen, total_us, count, function_of)[:40]),
        }
    return grids, details


def run_memory(setup: Setup) -> PartResult:
    """Part `memory`: resident memory of the worker while requests pass, after a warm-up."""
    with KafkaBroker() as broker, worker(setup, broker, NULL_WORKER) as null_worker:
        result = _null_load(setup, broker, null_worker, _MEMORY_REQUESTS, batch_calls=False)
    samples = result.rss_bytes["worker"]
    change = largest_change(samples)
    comparison = Comparison(
        work=f"worker's memory over {result.num_requests:,} requests, null engine",
        ours=f"{samples[0] / 2**20:.1f} MiB at first, changes by {change:.1%} at most",
        baseline="itself after the warm-up",
        ratio=None,
    )
    return PartResult([comparison], (), {"rss_bytes": result.rss_bytes, "requests": result.num_requests})


def _null_load(
    setup: Setup,
    broker: KafkaBroker,
    null_worker: Service,
    count: int,
    *,
    batch_calls: bool,
    profile: Path | None = None,
) -> LoadResult:
    return offer_load(
        setup,
        broker,
        watch={"worker": null_worker.pid},
        target="penstock",
        model="null",
        payload="ids",
        arrivals="closed",
        num_requests=setup.count(count),
        warm_up=setup.count(_WARM_UP),
        in_flight=IN_FLIGHT,
        batch_calls=batch_calls,
        profile=None if profile is None else str(profile),
    )


@contextmanager
def _echo_worker(setup: Setup, broker: KafkaBroker, kind: str) -> Iterator[Service]:
    spec = {
        "role": "worker",
        "bootstrap_servers": broker.bootstrap_servers,
        "topic": f"echo.{kind}",
        "batched": kind == "batched",
    }
    with Service("cpu.echo", spec, setup.logs / f"echo-{kind}.log") as service:
        yield service


def _echo_load(setup: Setup, broker: KafkaBroker, echo: Service, kind: str) -> dict[str, Any]:
    if broker.pid is None:
        raise RuntimeError("The broker ended during the benchmark.")
    spec = {
        "role": "client",
        "bootstrap_servers": broker.bootstrap_servers,
        "topic": f"echo.{kind}",
        "num_requests": setup.count(_NUM_ECHOES),
        "warm_up": setup.count(_WARM_UP),
        "in_flight": IN_FLIGHT,
        "watch": {"worker": echo.pid, "broker": broker.pid},
    }
    return run_once("cpu.echo", spec, setup.logs / "echo-client.log")
