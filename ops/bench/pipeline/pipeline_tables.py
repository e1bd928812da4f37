"""Figures and tables of the kept runs of the pipeline: rates in requests a second, latencies in ms."""

import statistics
from collections.abc import Mapping
from typing import Any

from penstock.ops.bench.common.measures import At, From, Measures, Record, Suite, results
from penstock.ops.bench.common.tables import Grid, Table, Targets, each

# Each with its function in `parts.py`, and its usual seconds. What needs the fleet whole comes first.
PARTS = {
    "alone": ("alone", 90),
    "idle": ("idle", 60),
    "closed": ("closed", 60),
    "job": ("job", 40),
    "open": ("open_loops", 40),
    "overload": ("overload", 20),
    "kill": ("kill", 50),
    "drain": ("drain", 30),
    "fleet": ("fleet", 10),
    "scale": ("scale", 200),
}
MODELS = ("MiniLM-L6", "MPNet-base", "ModernBERT-base", "bge-m3", "Qwen3-Embedding-0.6B")  # parts of suite `models`
ROUTE, ROUTE_SHAPE = "route", "BERT-base"  # a further part of suite `models`, and its model
CLOSED = ("ids 2-100", "ids 5-500", "texts 2-100", "texts 5-500", "shared calls", "a record each")
_SINGLES = ("shared calls", "a record each")  # of the same sequences as "ids 2-100"
_KINDS = ("member", "client", "broker")
_ALONE, _ENCODE = "engine alone, *, req/s", "SentenceTransformer.encode, *, req/s"
_CORES = [f"busiest {kind}, cores" for kind in _KINDS]


def _busiest(load: Mapping[str, Any], kind: str) -> float | None:
    return max((cores for label, cores in load.get("cores", {}).items() if label.startswith(kind)), default=None)


def _members_us(load: Mapping[str, Any]) -> float:
    used = sum(cores for label, cores in load["cores"].items() if label.startswith("member"))
    return float(used / load["requests_per_s"] * 1e6)


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' if count > 1 else ''}"


def _loads(path: str, name: str, **shown: Any) -> list[At]:
    """Figures of loads: rate and cores of closed loops, latency of open ones, whose name is a rate."""

    def closed(read: Any) -> Any:
        return lambda load: read(load) if load["load"]["callers"] else None

    def opened(key: str) -> Any:
        return lambda load: None if load["load"]["callers"] else load[key]

    return [
        At(path, f"{name}, req/s", closed(lambda load: load["requests_per_s"]), **shown),
        *[
            At(path, f"{name}, busiest {kind}, cores", closed(lambda load, kind=kind: _busiest(load, kind)), **shown)
            for kind in _KINDS
        ],
        At(path, f"{name}, p50, ms", opened("p50_ms"), **shown),
        At(path, f"{name}, p99, ms", opened("p99_ms"), **shown),
        At(path, f"{name}, answered", opened("answered_share"), **shown),
    ]


def _models(record: Record) -> Measures:
    found: dict[str, float] = {}
    for name in MODELS:
        part = results(record).get(name)
        if not part:  # it was not measured, or not to its end
            continue
        ours, alone = part["closed"]["loads"], part["alone"]["engine"]
        for load in ours:
            rate, of_engine = ours[load]["requests_per_s"], alone[load]["requests_per_s"]
            found |= {f"{name}, {load}, req/s": rate, f"{name}, {load}, engine alone, req/s": of_engine}
            found[f"{name}, {load}, share of the engine alone"] = rate / of_engine
        for load, theirs in part["alone"]["sentence_transformers"].items():
            found[f"{name}, {load}, SentenceTransformer.encode, req/s"] = theirs["requests_per_s"]
    return found


def _routes(record: Record) -> Measures:
    part, found = results(record).get(ROUTE) or {"loads": {}}, dict[str, float]()
    for load, rounds in part["loads"].items():
        rate = statistics.median([float(one["records_per_s"]) for one in rounds])
        of_engine = part["alone"]["engine"][load]["requests_per_s"]
        found |= {f"JSON route, {load}, records/s": rate, f"JSON route, {load}, engine alone, req/s": of_engine}
        found[f"JSON route, {load}, share of the engine alone"] = rate / of_engine
        cost_us = statistics.median([float(one["cpu_us"]["contestant"]) for one in rounds])
        found[f"JSON route, {load}, processor time a record, µs"] = cost_us
    return found


SUITE = Suite(
    "pipeline",
    (
        At("alone.engine.*.requests_per_s", _ALONE),
        At("alone.sentence_transformers.*.requests_per_s", _ENCODE),
        *_loads("closed.loads.*", "*"),
        *_loads("open.loads.*", "*"),
        From("*, share of the engine alone", ("*, req/s", _ALONE)),
        *[
            From(f"{load}, share of the engine alone", (f"{load}, req/s", "engine alone, ids 2-100, req/s"))
            for load in _SINGLES
        ],
        From("*, times SentenceTransformer.encode", ("*, req/s", _ENCODE)),
        At("closed.loads.a record each", "a record each, members' processor µs", _members_us),
        At("job.rows_per_s", "bulk job, texts 2-100, rows/s"),
        From(
            "bulk job, texts 2-100, share of the engine alone",
            ("bulk job, texts 2-100, rows/s", "engine alone, texts 2-100, req/s"),
        ),
        At("fleet.batches.prediction_error_p95", "all batches, prediction error, p95"),
        At("overload.in_time_share_of_peak", "twice saturation, answers in time, share of the peak"),
        At("overload.in_time_per_s", "twice saturation, answers in time, req/s"),
        At("overload.prediction_error_p95", "twice saturation, prediction error, p95"),
        At("kill.lost", "a member killed, requests lost"),
        At("kill.recovery_s", "a member killed, p99 as before after, s"),
        At("idle", "idle member, cores", lambda idle: _busiest(idle, "member")),
        At("drain.seconds", "drain, s"),
        At("drain.exit_codes", "drain, exit code", lambda codes: max(codes, key=abs)),
        *_loads("scale.*.loads.*", "*, *", keys=(_gpus, str)),
        *[
            From(f"{count} GPUs, *, times one GPU", (f"{count} GPUs, *, req/s", "1 GPU, *, req/s"))
            for count in range(2, 9)
        ],
        At("scale.*.kill.lost", "one of * GPUs killed, requests lost"),
        At("scale.*.kill.recovery_s", "one of * GPUs killed, p99 as before after, s"),
    ),
)
THROUGHPUT = Grid(
    [
        *("64 a record, or one call each", "through Kafka, req/s", "share of the engine alone"),
        *("engine alone on token ids, req/s", "SentenceTransformer.encode, no Kafka, req/s"),
        *("busiest member, cores", "busiest client, cores", "broker, cores"),
    ],
    [
        *each(
            CLOSED,
            *("*", "{*, req/s}", "{*, share of the engine alone}", f"{{{_ALONE}}}", f"{{{_ENCODE}}}"),
            *[f"{{*, {cores}}}" for cores in _CORES],
        ),
        *each(
            ["bulk job, texts 2-100"],
            *("*: `penstock embed`, rows", "{*, rows/s}", "{*, share of the engine alone}", *[""] * 5),
        ),
    ],
)
HEADLINE = Grid(
    ["saturated, req/s", "through Kafka", "engine alone on token ids", "SentenceTransformer.encode, no Kafka"],
    each(["texts 2-100"], "* tokens", "{*, req/s}", f"{{{_ALONE}}}", f"{{{_ENCODE}}}"),
)
LATENCY = Grid(
    ["offered, Poisson", "p50, ms", "p99, ms", "answered within 5 s"],
    [["*/s", "{*/s, p50, ms|never answered}", "{*/s, p99, ms|never answered}", "{*/s, answered}"]],
)
ROBUSTNESS = Grid(
    ["", "measured"],
    [
        [
            "twice saturation, 64 a record: answers in time, req/s",
            "{twice saturation, answers in time, req/s}",
        ],
        ["the same, share of the peak", "{twice saturation, answers in time, share of the peak}"],
        [
            "the same: error of the predicted time of its batches, p95",
            "{twice saturation, prediction error, p95}",
        ],
        ["a member killed (-9) at 0.6 of saturation: requests lost", "{a member killed, requests lost}"],
        ["the same: seconds until p99 is as before", "{a member killed, p99 as before after, s}"],
        ["busiest idle member, cores", "{idle member, cores}"],
        ["SIGTERM at 0.3 of saturation: seconds to the exit", "{drain, s}"],
        ["the same: exit code", "{drain, exit code}"],
        [
            "all batches of the model's fleet: error of the predicted time, p95",
            "{all batches, prediction error, p95}",
        ],
        ["a record each: members' processor time, µs a request", "{a record each, members' processor µs}"],
        ["one of * GPUs killed, requests lost", "{one of * GPUs killed, requests lost}"],
        ["one of * GPUs killed, p99 as before after, s", "{one of * GPUs killed, p99 as before after, s}"],
    ],
)
GPUS = Grid(
    ["fleet and load", "req/s", "times one GPU", "p50, ms", "p99, ms"],
    [
        [
            *("* GPU*, *", "{* GPU*, *, req/s}", "{* GPU*, *, times one GPU}"),
            *("{* GPU*, *, p50, ms}", "{* GPU*, *, p99, ms}"),
        ]
    ],
)
_MODELS_THROUGHPUT = Grid(
    [
        *("model, 64 a record", "through Kafka, req/s", "engine alone on token ids, req/s"),
        *("share of the engine alone", "SentenceTransformer.encode, no Kafka, req/s"),
    ],
    [
        [
            *("*, *", "{*, *, req/s}", "{*, *, engine alone, req/s}", "{*, *, share of the engine alone}"),
            "{*, *, SentenceTransformer.encode, req/s|}",
        ]
    ],
)
TABLES = {
    "headline": Table(SUITE, [*PARTS], [HEADLINE], newest=True),
    "pipeline-throughput": Table(SUITE, [*PARTS], [THROUGHPUT]),
    "pipeline-latency": Table(SUITE, [*PARTS], [LATENCY]),
    "pipeline-robustness": Table(SUITE, [*PARTS], [ROBUSTNESS]),
    "pipeline-gpus": Table(SUITE, ["scale"], [GPUS]),
    "pipeline-targets": Table(SUITE, [*PARTS], [Targets("pipeline", on_cpu="pipeline-cpu")]),
}
_ROUTES_THROUGHPUT = Grid(
    [
        *(f"{ROUTE_SHAPE}, one text a record", "through a JSON route, records/s", "engine alone on token ids, req/s"),
        *("share of the engine alone", "members' processor time a record, µs"),
    ],
    [
        [
            *("*", "{JSON route, *, records/s}", "{JSON route, *, engine alone, req/s}"),
            *("{JSON route, *, share of the engine alone}", "{JSON route, *, processor time a record, µs}"),
        ]
    ],
)
OF_MODELS = {
    "pipeline-models": Table(Suite("models", (_models,)), MODELS, [_MODELS_THROUGHPUT], apart=True),
    "pipeline-route": Table(Suite("models", (_routes,)), [ROUTE], [_ROUTES_THROUGHPUT, Targets("models")]),
}
