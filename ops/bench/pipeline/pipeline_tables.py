"""Tables of the kept runs of the pipeline, for README.md and the notes."""

from collections.abc import Mapping, Sequence

from penstock.ops.bench.common.kept_tables import of_each_machine, of_newest_machine, spreads, target_table
from penstock.ops.bench.common.markdown import table
from penstock.ops.bench.common.runs import Run
from penstock.ops.bench.common.verdicts import Spread
from penstock.ops.bench.pipeline.pipeline_measures import CLOSED, measures, rate_of
from penstock.ops.bench.pipeline.pipeline_plan import PARTS

SUITE = "pipeline"
_HEADLINE = "texts 2-100"  # of the measured loads, what most clients send
_FACTS = (
    ("twice saturation, answers in time, req/s", "twice saturation, 64 a record: answers in time, req/s"),
    ("twice saturation, answers in time, share of the peak", "the same, share of the peak"),
    ("twice saturation, prediction error, p95", "the same: error of the predicted time of its batches, p95"),
    ("a member killed, requests lost", "a member killed (-9) at 0.6 of saturation: requests lost"),
    ("a member killed, p99 as before after, s", "the same: seconds until p99 is as before"),
    ("idle member, cores", "busiest idle member, cores"),
    ("drain, s", "SIGTERM at 0.3 of saturation: seconds to the exit"),
    ("drain, exit code", "the same: exit code"),
    ("all batches, prediction error, p95", "all batches of the model's fleet: error of the predicted time, p95"),
    ("a record each, members' processor µs", "a record each: members' processor time, µs a request"),
)

Found = Mapping[str, Spread]


def throughput() -> str:
    """Table `pipeline-throughput`: requests a second at saturation, beside the alternatives of the same runs."""
    return of_each_machine(SUITE, PARTS, _throughput)


def latency() -> str:
    """Table `pipeline-latency`: open loops, from the time at which a request was due."""
    return of_each_machine(SUITE, PARTS, _latency)


def robustness() -> str:
    """Table `pipeline-robustness`: overload, a killed member, idle members, the end."""
    return of_each_machine(SUITE, PARTS, _robustness)


def without_model() -> str:
    """Table `pipeline-null`: the null engine and a bare echo."""
    return of_each_machine(SUITE, ("null", "echo"), _without_model)


def scale_out() -> str:
    """Table `pipeline-gpus`: the same command on several GPUs."""
    return of_each_machine(SUITE, ("scale",), _scale_out)


def against_targets() -> str:
    """Table `pipeline-targets`."""
    return of_each_machine(SUITE, PARTS, lambda runs: target_table(target_set(runs[-1]), runs, measures))


def target_set(run: Run) -> str:
    """Key of the targets of a run's machine in targets.json."""
    return "pipeline" if "gpu" in run.record["machine"] else "pipeline-cpu"


def headline() -> str:
    """Table `headline`: one load at saturation, of the machine measured last."""
    return of_newest_machine(SUITE, PARTS, _headline)


def _throughput(runs: Sequence[Run]) -> str:
    found = spreads(runs, measures)
    columns = [
        *("64 a record, or one call each", "through Kafka, req/s", "share of the engine alone"),
        *("engine alone on token ids, req/s", "SentenceTransformer.encode, no Kafka, req/s"),
        *("busiest member, cores", "busiest client, cores", "broker, cores"),
    ]
    rows = [
        [
            name,
            _shown(found, f"{name}, req/s"),
            _shown(found, f"{name}, share of the engine alone"),
            _shown(found, f"engine alone, {name}, req/s"),
            _shown(found, f"SentenceTransformer.encode, {name}, req/s"),
            *[_shown(found, f"{name}, busiest {kind}, cores") for kind in ("member", "client", "broker")],
        ]
        for name in CLOSED
        if f"{name}, req/s" in found
    ]
    return table(columns, rows) if rows else ""


def _headline(runs: Sequence[Run]) -> str:
    found = spreads(runs, measures)
    if f"{_HEADLINE}, req/s" not in found:
        return ""
    measured = ("{}, req/s", "engine alone, {}, req/s", "SentenceTransformer.encode, {}, req/s")
    row = [f"{_HEADLINE} tokens", *[_shown(found, each.format(_HEADLINE)) for each in measured]]
    columns = ["saturated, req/s", "through Kafka", "engine alone on token ids", "SentenceTransformer.encode, no Kafka"]
    return table(columns, [row])


def _latency(runs: Sequence[Run]) -> str:
    found = spreads(runs, measures)
    names = dict.fromkeys(name.removesuffix(", answered") for name in found if name.endswith("/s, answered"))
    offered = sorted((name for name in names if name[0].isdigit() and "GPU" not in name), key=rate_of)
    rows = [[name, *_latency_cells(found, name)] for name in offered]
    return table(["offered, Poisson", "p50, ms", "p99, ms", "answered within 5 s"], rows) if rows else ""


def _robustness(runs: Sequence[Run]) -> str:
    found = spreads(runs, measures)
    rows = [[title, str(found[name])] for name, title in _FACTS if name in found]
    rows += [[name, str(found[name])] for name in found if name.startswith("one of ")]
    return table(["", "measured"], rows) if rows else ""


def _without_model(runs: Sequence[Run]) -> str:
    found = spreads(runs, measures)
    rows = []
    for name in (name for name in found if name.startswith("null engine, ") and name.endswith(", req/s")):
        work = name.removesuffix(", req/s")
        cores = [_shown(found, f"{work}, busiest {kind}, cores") for kind in ("member", "client", "broker")]
        rows.append([work, str(found[name]), *cores])
    rows += [
        [name.removesuffix(", req/s"), str(found[name]), "", "", ""] for name in found if name.startswith("echo, ")
    ]
    columns = ["work", "req/s", "busiest member, cores", "busiest client, cores", "broker, cores"]
    return table(columns, rows) if rows else ""


def _scale_out(runs: Sequence[Run]) -> str:
    found = spreads(runs, measures)
    rows = []
    for name in found:
        if "GPU" not in name or name.startswith("one of "):
            continue
        if name.endswith(", req/s"):
            work = name.removesuffix(", req/s")
            rows.append([work, str(found[name]), _shown(found, f"{work}, times one GPU"), "", ""])
        elif name.endswith("/s, answered"):
            p50, p99, _ = _latency_cells(found, work := name.removesuffix(", answered"))
            rows.append([work, "", "", p50, p99])
    return table(["fleet and load", "req/s", "times one GPU", "p50, ms", "p99, ms"], rows) if rows else ""


def _latency_cells(found: Found, name: str) -> list[str]:
    p50, p99 = (_shown(found, f"{name}, {which}, ms") or "never answered" for which in ("p50", "p99"))
    return [p50, p99, _shown(found, f"{name}, answered")]


def _shown(found: Found, name: str) -> str:
    return str(found[name]) if name in found else ""
