"""A result file as one Markdown document."""

from collections.abc import Mapping
from typing import Any

from penstock.ops.bench.common.markdown import table
from penstock.ops.bench.serving.loads.systems import ENGINES
from penstock.ops.bench.serving.report.run_tables import grids

Record = Mapping[str, Any]


def render(record: Record) -> str:
    """One Markdown document."""
    sections = [f"## {grid.title}\n\n{table(grid.columns, grid.rows)}" for grid in grids(record)]
    return "\n\n".join([_header(record), *sections]) + "\n"


def _header(record: Record) -> str:
    machine = record["machine"]
    where = machine.get("gpu") or f"{machine['cpu']}, {len(machine['cores_used'])} cores"
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
    lines = [
        f"# Serving benchmarks, {where}",
        "",
        f"- `{record['command']}`, {record['started']}",
        f"- {record['model']}, {record['dtype']}, {record['num_lanes']} lanes; commit {record['commit']}",
        f"- at most {record['max_batch_sequences']} sequences and {record['max_batch_tokens']:,} tokens in a batch, "
        "unless a row says otherwise",
        f"- {versions}",
        "",
        "Requests come in an open loop; latencies count from the moment at which they were due. Saturation: answers a "
        "second while more come than can be answered. Critical point: the highest rate at which answers keep up with "
        "arrivals and p99 is within the SLO, a refusal counting as infinitely late. Every figure is of real "
        "runs, unless it says simulated or predicted.",
        "",
        *[f"- {kind}: {what}" for kind, what in ENGINES.items()],
    ]
    return "\n".join(lines)
