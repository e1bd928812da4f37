"""Tables of the kept runs of whole jobs, for NOTES.md, and the figures of one run by name."""

from collections.abc import Callable, Iterator, Sequence

from penstock.ops.bench.common.kept_tables import NONE_KEPT, Measures, Record, caption, spreads, target_table
from penstock.ops.bench.common.markdown import table
from penstock.ops.bench.common.runs import Run, kept_runs, machines

SUITE = "bulk"
PARTS = ("share", "memory", "kills")  # a run has one of them
_TASKS = ("embed", "classify")


def jobs() -> str:
    """Table `bulk`: the runs of each part on each machine."""
    return _of_each_part(_jobs)


def against_targets() -> str:
    """Table `bulk-targets`."""
    return _of_each_part(lambda runs: target_table(target_set(runs[-1]), runs, measures))


def target_set(run: Run) -> str:
    """Key of the targets of a run's machine in targets.json."""
    return "bulk" if "gpu" in run.record["machine"] else "bulk-cpu"


def measures(record: Record) -> Measures:
    """Figures of the parts that a run has."""
    return dict(_measures(record["parts"]))


def _of_each_part(section: Callable[[Sequence[Run]], str]) -> str:
    every = [(machine, part) for machine in machines(SUITE) for part in PARTS]
    found = [(part, runs) for machine, part in every if (runs := _current_runs(machine, part))]
    sections = [f"{text}\n\n{caption(runs, (part,))}" for part, runs in found if (text := section(runs))]
    return "\n\n".join(sections) or NONE_KEPT


def _current_runs(machine: str, part: str) -> list[Run]:
    """The runs of a part of the commit with which it was measured last, oldest first."""
    runs = [run for run in kept_runs(SUITE, machine) if part in run.record["parts"]]
    return [run for run in runs if run.commit == runs[-1].commit]


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
