"""The figures of one kept run of the pipeline by name, from the raw values of its parts."""

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.ops.bench.common.kept_tables import Measures, Record

ERROR = "error"  # beside the records of a part that did not end
CLOSED = ("ids 2-100", "ids 5-500", "texts 2-100", "texts 5-500", "shared calls", "a record each")
_WORKLOAD = {"shared calls": "ids 2-100", "a record each": "ids 2-100"}  # of the engine alone

Found = Iterator[tuple[str, float]]


def measures(record: Record) -> Measures:
    """Rates in requests a second, latencies in ms, ratios within the run. What was not measured is absent."""
    parts = record["parts"]
    found = [*_alone(parts), *_closed(parts), *_open(parts), *_single_loads(parts), *_null(parts), *_scale(parts)]
    return dict(found)


def loads_of(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Name -> record of the loads that a part has."""
    found: Mapping[str, Any] = part.get("loads", {})
    return found


def rate_of(load: str) -> float:
    """Requests a second that the name of an open loop says."""
    return float(load.removesuffix("/s").replace(",", ""))


def _alone(parts: Mapping[str, Any]) -> Found:
    alone = parts.get("alone", {})
    for kind, name in (("engine", "engine alone"), ("sentence_transformers", "SentenceTransformer.encode")):
        for workload, found in alone.get(kind, {}).items():
            yield f"{name}, {workload}, req/s", found["requests_per_s"]


def _closed(parts: Mapping[str, Any]) -> Found:
    alone = parts.get("alone", {})
    for name, load in loads_of(parts.get("closed", {})).items():
        rate = load["requests_per_s"]
        yield f"{name}, req/s", rate
        if engine := alone.get("engine", {}).get(_WORKLOAD.get(name, name)):
            yield f"{name}, share of the engine alone", rate / engine["requests_per_s"]
        if other := alone.get("sentence_transformers", {}).get(name):
            yield f"{name}, times SentenceTransformer.encode", rate / other["requests_per_s"]
        yield from _cores(name, load)
    if record := loads_of(parts.get("closed", {})).get("a record each"):
        used = sum(cores for label, cores in record["cores"].items() if label.startswith("member"))
        yield "a record each, members' processor µs", used / record["requests_per_s"] * 1e6


def _cores(name: str, load: Mapping[str, Any]) -> Found:
    """Cores of the broker, of the busiest member and of the busiest client."""
    for kind in ("broker", "member", "client"):
        used = [cores for label, cores in load["cores"].items() if label.startswith(kind)]
        if used:
            yield f"{name}, busiest {kind}, cores", max(used)


def _open(parts: Mapping[str, Any]) -> Found:
    for name, load in loads_of(parts.get("open", {})).items():
        yield from _latency(name, load)


def _latency(name: str, load: Mapping[str, Any]) -> Found:
    for which in ("p50", "p99"):
        if load[f"{which}_ms"] is not None:  # None: so many were never answered
            yield f"{name}, {which}, ms", load[f"{which}_ms"]
    yield f"{name}, answered", load["answered_share"]


def _single_loads(parts: Mapping[str, Any]) -> Found:
    batches = parts.get("fleet", {}).get("batches", {})
    if "prediction_error_p95" in batches:
        yield "all batches, prediction error, p95", batches["prediction_error_p95"]
    overload, kill, idle, drain = (parts.get(name, {}) for name in ("overload", "kill", "idle", "drain"))
    if "in_time_share_of_peak" in overload:
        yield "twice saturation, answers in time, share of the peak", overload["in_time_share_of_peak"]
        yield "twice saturation, answers in time, req/s", overload["in_time_per_s"]
        if overload.get("prediction_error_p95") is not None:
            yield "twice saturation, prediction error, p95", overload["prediction_error_p95"]
    if "lost" in kill:
        yield "a member killed, requests lost", kill["lost"]
        if kill["recovery_s"] is not None:
            yield "a member killed, p99 as before after, s", kill["recovery_s"]
    members = [cores for label, cores in idle.get("cores", {}).items() if label.startswith("member")]
    if members:
        yield "idle member, cores", max(members)
    if "seconds" in drain:
        yield "drain, s", drain["seconds"]
        yield "drain, exit code", max(drain["exit_codes"], key=abs)


def _null(parts: Mapping[str, Any]) -> Found:
    for members, fleet in parts.get("null", {}).items():
        if members != ERROR:
            for name, load in loads_of(fleet).items():
                work = f"null engine, {members}, {name}"
                if load["load"]["callers"]:
                    yield f"{work}, req/s", load["requests_per_s"]
                else:
                    yield from _latency(work, load)
                yield from _cores(work, load)
    for kind, name in (("send", "a record each"), ("batched", "batches of records")):
        if found := parts.get("echo", {}).get(kind):
            yield f"echo, {name}, req/s", found["requests_per_s"]


def _scale(parts: Mapping[str, Any]) -> Found:
    sizes = {int(count): fleet for count, fleet in parts.get("scale", {}).items() if count != ERROR}
    single = loads_of(sizes.get(1, {}))
    for count, fleet in sizes.items():
        if killed := fleet.get("kill"):
            yield f"one of {count} GPUs killed, requests lost", killed["lost"]
            if killed["recovery_s"] is not None:
                yield f"one of {count} GPUs killed, p99 as before after, s", killed["recovery_s"]
        for name, load in loads_of(fleet).items():
            work = f"{count} GPU{'s' if count > 1 else ''}, {name}"
            if not load["load"]["callers"]:
                yield from _latency(work, load)
                continue
            yield f"{work}, req/s", load["requests_per_s"]
            if count > 1 and name in single:
                yield f"{work}, times one GPU", load["requests_per_s"] / single[name]["requests_per_s"]
