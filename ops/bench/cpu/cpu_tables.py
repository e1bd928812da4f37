"""Tables of the kept runs of the pipeline, for README.md and NOTES.md."""

from collections.abc import Mapping, Sequence

from penstock.ops.bench.common.kept_tables import caption, of_each_machine, spreads, target_table
from penstock.ops.bench.common.markdown import table
from penstock.ops.bench.common.runs import Run, current_runs, machines
from penstock.ops.bench.common.verdicts import Spread
from penstock.ops.bench.cpu.cpu_measures import DTYPES, WAYS, measures

PARTS = ("engine", "engine-bf16", "end-to-end", "latency", "null", "memory")
_NOTHING = ""
BEFORE = "cpu-before"  # runs of an earlier commit by its own benchmarks, in turn with those of the suite "cpu"
_COMPARED = ("texts/s", "req/s", "share of the", "times ")  # latencies are not: the earlier load is five times as long


def headline() -> str:
    """Table `cpu-headline`: each workload beside its alternative and its bound, measured in the same run."""
    return of_each_machine("cpu", PARTS, _headline)


def against_targets() -> str:
    """Table `cpu-targets`."""
    return of_each_machine("cpu", PARTS, lambda runs: target_table("cpu", runs, measures))


def beside_before() -> str:
    """Table `cpu-before`: the current runs beside those of an earlier commit on the same machine."""
    return "\n\n".join(_beside(machine) for machine in machines(BEFORE))


def _beside(machine: str) -> str:
    earlier, now = current_runs(BEFORE, machine), current_runs("cpu", machine)
    before, after = spreads(earlier, measures), spreads(now, measures)
    rows = [
        [name, str(before[name]), str(after[name]), f"{after[name].median / before[name].median:.3f}"]
        for name in after.keys() & before.keys()
        if any(unit in name for unit in _COMPARED)
    ]
    header = ["measure", f"commit {earlier[-1].commit}", f"commit {now[-1].commit}", "now over before"]
    return "\n\n".join([table(header, sorted(rows)), caption(earlier, PARTS), caption(now, PARTS)])


def _headline(runs: Sequence[Run]) -> str:
    found = spreads(runs, measures)
    rows = [row for dtype in DTYPES for row in [*_engine(found, dtype), *_end_to_end(found, dtype)]]
    rows += [row for dtype in DTYPES for row in _latency(found, dtype)]
    rows += _null(found)
    return table(["work", "penstock", "alternative", "bound"], rows)


def _engine(found: Mapping[str, Spread], dtype: str) -> list[list[str]]:
    name = f"engine {dtype}"
    ours = found.get(f"{name}, texts/s")
    if ours is None:
        return []
    theirs, floor = found[f"{name}, sentence-transformers, texts/s"], found[f"{name}, floor, texts/s"]
    work = f"engine alone, {dtype}, texts/s"
    return [[work, str(ours), f"sentence-transformers, its best batch: {theirs}", f"matrix products alone: {floor}"]]


def _end_to_end(found: Mapping[str, Spread], dtype: str) -> list[list[str]]:
    name = f"end to end {dtype}"
    if f"{name}, FastStream, texts/s" not in found:
        return []
    service = f"FastStream and sentence-transformers: {found[f'{name}, FastStream, texts/s']}"
    alone = f"engine alone, same rounds: {found[f'{name}, engine alone, texts/s']}"
    return [
        [f"through Kafka, {dtype}, {way}, texts/s", str(found[f"{name}, {way}, texts/s"]), service, alone]
        for way in ("lists", "one text a call")
    ]


def _latency(found: Mapping[str, Spread], dtype: str) -> list[list[str]]:
    rows = []
    for which in ("p50", "p99"):
        ours = found.get(f"latency penstock {dtype}, {which}, ms")
        theirs = found.get(f"latency FastStream {dtype}, {which}, ms")
        if ours is not None:
            beside = f"FastStream and sentence-transformers, {dtype}: {theirs or 'not measured'}"
            rows.append([f"200 texts/s, Poisson, through Kafka, {dtype}, {which}, ms", str(ours), beside, _NOTHING])
    return rows


def _null(found: Mapping[str, Spread]) -> list[list[str]]:
    if "echo, a record each, req/s" not in found:
        return []
    echo = f"bare aiokafka echo, a record each: {found['echo, a record each, req/s']}"
    bound = f"echo with batches of records: {found['echo, batches of records, req/s']}"
    return [
        [f"no model, one sequence a call, {way}, req/s", str(found[f"null engine, {way}, req/s"]), echo, bound]
        for way in WAYS
    ]
