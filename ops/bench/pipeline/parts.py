"""The parts of the pipeline: what each measures of the model's fleet, of the engine alone, and of other fleets."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from penstock.ops.bench.common.draws import uniform
from penstock.ops.bench.common.processes import run_once
from penstock.ops.bench.common.setup import ROUNDS
from penstock.ops.bench.contestants.worker_fleet import FleetSpec
from penstock.ops.bench.load.backlog import Backlog, json_records
from penstock.ops.bench.load.load_bench import Record, say
from penstock.ops.bench.load.loads import LONG, ROWS, SHORT, Load, open_load
from penstock.ops.bench.load.payloads import max_tokens, sequences
from penstock.ops.bench.pipeline.fleet_bench import FleetBench
from penstock.ops.bench.pipeline.pipeline_bench import SCALE_RATE_PER_S, PipelineBench, closed_loads
from penstock.ops.bench.pipeline.run_facts import prepared

_ALONE_MOST_S = 180.0
_OF_MODELS = ("ids 2-100", "ids 5-500", "texts 2-100", "texts 5-500")
_TOPICS, _FIELDS = ("texts", "texts.enriched"), ("--text", "text", "--result-field", "vector")
_ROUTE_PARTITIONS = 24  # shared evenly by up to 4, and by 6 and 8 members
_ROUTE_PASSES = 8  # as many records as this number of passes of the engine alone
_SCALED = ("ids 2-100", "ids 5-500", "a record each", "texts 2-100")  # loads of part `scale`


def alone(bench: PipelineBench) -> Record:
    """The engine alone, and SentenceTransformer.encode, in a process of their own."""
    if bench.model is None:
        return {"not_applicable": "the null engine has no model"}
    return _alone(bench, bench.model, bench.sizes.alone_short, bench.sizes.alone_long)


def model(bench: PipelineBench, shape: str) -> Record:
    """A fleet of a model of this shape under loads that saturate it, and the engine alone, as `alone` measures it."""
    path = Path(prepared(shape, bench.folder)["model"])
    some = (
        bench.sizes.alone_short // 2,
        bench.sizes.alone_long // 2,
    )  # SentenceTransformer takes minutes for large models
    found: Record = {"alone": _alone(bench, path, *some)}
    with bench.other_fleet(shape, FleetSpec(str(path), bench.worker_args), path) as (workers, described):
        loads = [load for load in bench.closed_loads() if load.name in _OF_MODELS]
        workers.warm_up(loads[0])
        return {**found, **described, "closed": _offered(workers, loads)}


def _alone(bench: PipelineBench, model: Path, short: int, long: int) -> Record:
    requests = {SHORT: short, LONG: long}
    workloads = [
        (load.name, load.payload, load.low, load.high, requests[load.low, load.high])
        for load in bench.closed_loads()
        if load.rows == ROWS
    ]
    batches = list(bench.sizes.st_batches)
    spec = {"model": str(model), "device": "auto", "workloads": workloads, "batches": batches}
    found = run_once("contestants.engine_alone", spec, bench.folder / "alone.log", _ALONE_MOST_S)
    for kind in ("engine", "sentence_transformers"):
        rates = {name: f"{rate['requests_per_s']:,.0f}" for name, rate in found[kind].items()}
        say(f"{kind} alone, req/s: {rates}")
    if "sentence_transformers_error" in found:
        why = found["sentence_transformers_error"]
        bench.failures["SentenceTransformer.encode"] = {"error": why, "where": "alone", "count": 1}
    return found


def idle(bench: PipelineBench) -> Record:
    """The cores that the fleet uses without a load."""
    return bench.fleet.idle()


def closed(bench: PipelineBench) -> Record:
    """Loads that saturate the fleet."""
    found = _offered(bench.fleet, bench.closed_loads())
    bench.saturated |= {name: float(load["requests_per_s"]) for name, load in found["loads"].items()}
    return found


def job(bench: PipelineBench) -> Record:
    """A bulk job."""
    if bench.model is None:
        return {"not_applicable": "the null engine takes no texts"}
    return bench.fleet.job(bench.model, bench.sizes.job_rows)


def open_loops(bench: PipelineBench) -> Record:
    """Poisson arrivals at given rates."""
    rates = bench.options["rates"] or bench.sizes.rates_per_s
    return _offered(bench.fleet, [open_load(rate, bench.warm_s, bench.seconds) for rate in rates])


def overload(bench: PipelineBench) -> Record:
    """Twice what saturates the fleet."""
    return bench.fleet.overload(bench.saturation("ids 2-100"), bench.sizes.deadline_s)


def kill(bench: PipelineBench) -> Record:
    """A member is killed under load."""
    if bench.fleet.num_members < 2:
        return {"not_applicable": "the fleet has one member"}
    return bench.fleet.kill(bench.saturation("shared calls"))


def drain(bench: PipelineBench) -> Record:
    """The fleet is stopped under load."""
    return bench.fleet.drain(bench.saturation("shared calls"))


def fleet(bench: PipelineBench) -> Record:
    """How the fleet came up, and the batches of its loads."""
    return bench.described_fleet()


def route(bench: PipelineBench, shape: str) -> Record:
    """Texts of JSON records on a topic, whose vectors go to another; and the engine alone."""
    path = Path(prepared(shape, bench.folder)["model"])
    requests = {"texts 2-100": bench.sizes.alone_short, "texts 5-500": bench.sizes.alone_long}
    offered = closed_loads(bench.sizes, bench.warm_s, bench.seconds, max_tokens=max_tokens(path), texts=True)
    loads = [load for load in offered if load.name in requests]
    workloads = [(load.name, load.payload, load.low, load.high, requests[load.name]) for load in loads]
    spec = {"model": str(path), "device": "auto", "workloads": workloads, "batches": []}
    found: Record = {"alone": run_once("contestants.engine_alone", spec, bench.folder / "alone.log", _ALONE_MOST_S)}
    arguments = (*bench.worker_args, "--input-topic", _TOPICS[0], "--output-topic", _TOPICS[1], *_FIELDS)
    with bench.route_fleet(FleetSpec(str(path), arguments), _TOPICS, _ROUTE_PARTITIONS) as (broker, workers):
        found |= {"members": len(workers.members()), "command": workers.command, "loads": {}}
        for load in loads:
            lengths = uniform(load.low, load.high, _ROUTE_PASSES * requests[load.name], 9)
            records = json_records(sequences("texts", lengths, path, 9))
            backlog = Backlog(load.name, broker, _TOPICS, records, workers.watched, _ROUTE_PARTITIONS)
            backlog.measure()
            found["loads"][load.name] = [backlog.measure() for _ in range(ROUNDS)]
    return found


def scale(bench: PipelineBench) -> Record:
    """The same command on more and more GPUs."""
    found: dict[str, Any] = {}
    most = max(bench.options["gpus"])
    for count in bench.options["gpus"]:
        spec = FleetSpec(str(bench.model), (*bench.worker_args, "--gpus", ",".join(map(str, range(count)))))
        with bench.other_fleet(f"gpus-{count}", spec, bench.model) as (workers, described):
            loads = bench.closed_loads()
            workers.warm_up(loads[0])
            chosen = [load for load in loads if load.name in _SCALED]
            if count == most:
                chosen.append(open_load(SCALE_RATE_PER_S, bench.warm_s, bench.seconds))
            record = found[str(count)] = {**described, **_offered(workers, chosen)}
            if count == most > 1:
                record["kill"] = workers.kill(record["loads"]["a record each"]["requests_per_s"], whole_gpu=True)
    return found


def _offered(workers: FleetBench, loads: Iterable[Load]) -> Record:
    return {"loads": {load.name: workers.offer(load) for load in loads}}
