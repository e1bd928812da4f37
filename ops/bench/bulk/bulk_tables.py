"""Figures and tables of the kept runs of whole jobs."""

from penstock.ops.bench.common.measures import At, Suite
from penstock.ops.bench.common.tables import Grid, Table, Targets

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
    ),
)
JOBS = Grid(["measure", "measured"], [[at.name, f"{{{at.name}}}"] for at in SUITE.declared if isinstance(at, At)])
TABLES = {
    "bulk": Table(SUITE, ["share"], [JOBS]),
    "bulk-targets": Table(SUITE, ["share"], [Targets("bulk", on_cpu="bulk-cpu")]),
}
