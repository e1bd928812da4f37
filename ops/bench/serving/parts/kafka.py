"""Through Kafka, with broker, worker process and client: critical points, beside those in process, and fixed loads."""

import dataclasses
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.ops.bench.common.processes import Service, run_once
from penstock.ops.bench.serving.harness.harness import BenchHarness
from penstock.ops.bench.serving.harness.run_plan import RunPlan
from penstock.ops.bench.serving.loads.systems import System, default, no_batch, on_packed, tei
from penstock.ops.bench.serving.parts.critical import critical_point
from penstock.ops.bench.serving.parts.kafka_client import ClientSpec
from penstock.ops.bench.serving.parts.saturation import Row, Say
from penstock.ops.kafka import KafkaBroker, MockBroker, kafka_missing

_PATIENCE_S = 30.0  # deadline of a call where the system has no objective: longer than the backlog of an overloaded run
_NUM_LENGTHS = 4096  # requests whose lengths a client is given
_MOST_SEARCH_S = 600.0
_FIRST_SHARE = 0.7  # where a search begins, as a share of its bound: the cost, or the rate in process
LOADS = (0.7, 0.9, 1.2)  # of saturation
_OVERLOAD = 1.4  # times what can be answered, by the cost alone
_TIMES = 5.0  # the usual length of a run, at a given rate: in one of 4 s a single stall decides
_MOCK_FETCH_MAX_WAIT_MS = 5  # the mock answers a fetch only when this time is up

Connection = dict[str, Any]  # settings that the worker and the client share


def run_points(bench: BenchHarness, plan: RunPlan, say: Say) -> Row:
    """Critical points of the first workload, each system in process and then through Kafka on the same requests."""
    lengths = plan.lengths[0]
    slo_s = plan.slo_of(bench, lengths)
    rows: list[Row] = []
    with _broker(plan.bootstrap_servers) as (kind, connection), tempfile.TemporaryDirectory() as folder:
        say(f"critical points through Kafka ({kind}), {lengths} tokens, SLO {slo_s * 1e3:.0f} ms")
        for system in systems(bench, slo_s):
            in_process = _in_process(bench, plan, system, lengths, slo_s)
            rate = in_process["rate_per_s"]
            through = _through_kafka(bench, plan, system, lengths, slo_s, rate, connection, Path(folder))
            rows.append({"system": system.name, "in_process": in_process, "through_kafka": through})
            say(f"  {system.name}: {rate:,.0f} req/s in process, {through['rate_per_s']:,.0f} through Kafka")
    return {"broker": kind, "lengths": lengths, "slo_s": slo_s, "rows": rows}


def run_loads(bench: BenchHarness, plan: RunPlan, say: Say) -> Row:
    """The answers in time of each system at `LOADS` of saturation: the rate of TEI's rule, which refuses none."""
    lengths = plan.lengths[0]
    slo_s = plan.slo_of(bench, lengths)
    with _broker(plan.bootstrap_servers) as (kind, connection), tempfile.TemporaryDirectory() as folder:
        say(f"shares of saturation through Kafka ({kind}), {lengths} tokens, SLO {slo_s * 1e3:.0f} ms")
        found = _at_loads(bench, plan, lengths, slo_s, connection, Path(folder), say)
    return {"broker": kind, "lengths": lengths, "slo_s": slo_s, **found}


def _at_loads(
    bench: BenchHarness, plan: RunPlan, lengths: str, slo_s: float, connection: Connection, folder: Path, say: Say
) -> Row:
    rule = tei(bench.limits(slo_s))
    bound = bench.capacity_per_s(rule.engine, lengths, rule.settings.max_batch_sequences)

    def runs(system: System, *rates: float) -> list[Row]:
        found = _through_kafka(bench, plan, system, lengths, slo_s, bound, connection, folder, rates)
        return list(found["runs"])

    saturation = float(runs(rule, _OVERLOAD * bound)[0]["answered_per_s"])
    say(f"  saturation {saturation:,.0f} req/s through Kafka")
    rows = []
    for system in systems(bench, slo_s):
        for load, figures in zip(LOADS, runs(system, *[load * saturation for load in LOADS]), strict=True):
            rows.append({"load": load, "slo_s": slo_s, "system": system.name, **figures})
            say(f"  {system.name} at {load:g}: {figures['goodput_per_s']:,.0f} in time/s")
    return {"saturation_per_s": saturation, "rows": rows}


def systems(bench: BenchHarness, slo_s: float) -> list[System]:
    """The four systems: one request at a time, first come first served, the DP, and the default."""
    limits = bench.limits(slo_s)
    by_name = {system.name: system for system in on_packed(limits)}
    return [no_batch(limits), tei(limits), by_name["packed, DP"], default(limits)]


@contextmanager
def _broker(bootstrap_servers: str | None) -> Iterator[tuple[str, Connection]]:
    """The named broker; else a local Kafka if Java is installed, else librdkafka's mock."""
    if bootstrap_servers is not None:
        yield f"the broker at {bootstrap_servers}", {"bootstrap_servers": bootstrap_servers}
    elif kafka_missing() is None:
        with KafkaBroker() as broker:
            yield "a Kafka broker of one node", {"bootstrap_servers": broker.bootstrap_servers}
    else:
        with MockBroker() as mock:
            waits = {"fetch_max_wait_ms": _MOCK_FETCH_MAX_WAIT_MS}
            yield "librdkafka's mock broker", {"bootstrap_servers": mock.bootstrap_servers, **waits}


def _in_process(bench: BenchHarness, plan: RunPlan, system: System, lengths: str, slo_s: float) -> Row:
    allowed = bench.capacity_per_s(system.engine, lengths, system.settings.max_batch_sequences)
    return critical_point(
        lambda rate, times: bench.real(system, plan.load(lengths, rate, slo_s, times=times), grace_s=2 * slo_s),
        _FIRST_SHARE * allowed,
        slo_s,
    )


def _through_kafka(
    bench: BenchHarness,
    plan: RunPlan,
    system: System,
    lengths: str,
    slo_s: float,
    in_process_per_s: float,
    connection: Connection,
    folder: Path,
    rates: Sequence[float] = (),
) -> Row:
    """A new worker with a new topic and group, so that no state of the previous system remains."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    spec = ClientSpec(
        connection={**connection, "model": name},
        lengths=bench.lengths(lengths, _NUM_LENGTHS).tolist(),
        vocab_size=bench.packed.info.vocab_size,
        slo_s=slo_s,
        timeout_s=_PATIENCE_S if system.settings.slo_s is None else system.settings.slo_s,
        guess_per_s=_FIRST_SHARE * in_process_per_s,
        seconds=plan.load(lengths, in_process_per_s, slo_s, times=_TIMES if rates else 1.0).seconds,
        rates_per_s=list(rates),
    )
    settings = {**connection, **worker_settings(bench, system), "served_name": name}
    settings["cost_path"] = str(folder / "costs.sqlite")
    worker = {"settings": settings, "profile": None}
    with Service("cpu.worker_process", worker, folder / f"{name}.jsonl"):
        return run_once(
            "serving.parts.kafka_client", dataclasses.asdict(spec), folder / "client.log", timeout_s=_MOST_SEARCH_S
        )


def worker_settings(bench: BenchHarness, system: System) -> dict[str, Any]:
    """Worker settings of the system. Its objective is the deadline of each request."""
    chosen, scheduler = bench.settings, system.settings
    return {
        "model": chosen.model,
        "device": chosen.device,
        "dtype": chosen.dtype,
        "lanes": scheduler.num_lanes,
        "trigger": scheduler.trigger,
        "partition": scheduler.partition,
        "order": scheduler.order,
        "admission": scheduler.admission,
        "max_batch_sequences": scheduler.max_batch_sequences,
        "max_batch_tokens": scheduler.max_batch_tokens,
        "max_wait_ms": scheduler.max_wait_s * 1e3,
        "log_format": "json",
    }
