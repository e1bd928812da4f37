"""Tables of the kept runs of whole jobs, for NOTES.md, and the figures of one run by name."""

from collections.abc import Iterator, Sequence

from penstock.ops.bench.common.kept_tables import Measures, Record, of_each_machine, spreads, target_table
from penstock.ops.bench.common.markdown import table
from penstock.ops.bench.common.runs import Run

SUITE = "bulk"
PARTS = ("share", "memory", "kills")
_TASKS = ("embed", "classify")


def jobs() -> str:
    """Table `bulk`."""
    return of_each_machine(SUITE, PARTS, _jobs)


def against_targets() -> str:
    """Table `bulk-targets`."""
    return of_each_machine(SUITE, PARTS, lambda runs: target_table(target_set(runs[-1]), runs, measures))


def target_set(run: Run) -> str:
    """Key of the targets of a run's machine in targets.json."""
    return "bulk" if "gpu" in run.record["machine"] else "bulk-cpu"


def measures(record: Record) -> Measures:
    """Figures of the parts that a run has."""
    return dict(_measures(record["parts"]))


def _measures(parts: Record) -> Iterator[tuple[str, float]]:
    if share := parts.get("share"):
        yield "engine alone, texts, rows/s", share["engine_alone_rows_per_s"]["of_texts"]
        yield "engine alone, token ids, rows/s", share["engine_alone_rows_per_s"]["of_ids"]
        for task in _TASKS:
            yield f"{task}, rows/s", share["rows_per_s"][task]
            yield f"{task}, share of the engine alone", share["share"][task]["of_texts"]
            yield f"{task}, share of the engine alone on token ids", share["share"][task]["of_ids"]
            yield f"{task}, share by processor time", share["share"][task]["by_processor_time"]
    if memory := parts.get("memory"):
        yield "nothing computed, rows", memory["rows"]
        yield "nothing computed, rows/s", memory["rows_per_s"]
        yield "nothing computed, largest memory of the job, MB", memory["peak_rss_bytes"] / 1e6
        yield "nothing computed, processor time of the job, µs a row", memory["cpu_us_per_row"]
    if kills := parts.get("kills"):
        for extension in ("csv", "parquet"):
            yield f"killed three times, {extension}, rows that differ", kills[extension]["rows_that_differ"]


def _jobs(runs: Sequence[Run]) -> str:
    found = spreads(runs, measures)
    return table(["measure", "measured"], [[name, str(values)] for name, values in found.items()])
