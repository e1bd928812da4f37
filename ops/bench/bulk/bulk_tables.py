"""Figures and tables of the kept runs of whole jobs. A run has one of the parts."""

from penstock.ops.bench.common.measures import At, Suite
from penstock.ops.bench.common.tables import Grid, Table, Targets, together

PARTS = ("share", "memory", "kills")
_TASKS = ("embed", "classify")
SUITE = Suite(
    "bulk",
    (
        At("share.engine_alone_rows_per_s.of_texts", "engine alone, texts, rows/s"),
        At("share.engine_alone_rows_per_s.of_ids", "engine alone, token ids, rows/s"),
        *[
            At(f"share.{path}", f"{task}, {name}")
            for task in _TASKS
            for path, name in (
                (f"rows_per_s.{task}", "rows/s"),
                (f"share.{task}.of_texts", "share of the engine alone"),
                (f"share.{task}.of_ids", "share of the engine alone on token ids"),
                (f"share.{task}.by_processor_time", "share by processor time"),
            )
        ],
        At("memory.rows", "nothing computed, rows"),
        At("memory.rows_per_s", "nothing computed, rows/s"),
        At("memory.peak_rss_bytes", "nothing computed, largest memory of the job, MB", lambda peak: peak / 1e6),
        At("memory.cpu_us_per_row", "nothing computed, processor time of the job, µs a row"),
        At("kills.csv.rows_that_differ", "killed three times, csv, rows that differ"),
        At("kills.parquet.rows_that_differ", "killed three times, parquet, rows that differ"),
    ),
)
JOBS = Grid(["measure", "measured"], [[at.name, f"{{{at.name}}}"] for at in SUITE.declared if isinstance(at, At)])
TABLES = {
    "bulk": together(*[Table(SUITE, [part], [JOBS]) for part in PARTS]),
    "bulk-targets": together(*[Table(SUITE, [part], [Targets("bulk", on_cpu="bulk-cpu")]) for part in PARTS]),
}
