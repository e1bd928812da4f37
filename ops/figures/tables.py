"""The tables of kept runs in the repository's Markdown files.

A table stands between `<!-- figures:NAME -->` and `<!-- /figures -->`; NAME is a key of `TABLES`. Everything between
the two is replaced.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from penstock.ops.bench.cellular import cellular_tables, generation_tables
from penstock.ops.bench.common.tables import run_table
from penstock.ops.bench.cpu import cpu_tables
from penstock.ops.bench.delivery import delivery_tables
from penstock.ops.bench.gpu import gpu_tables
from penstock.ops.bench.pipeline import pipeline_tables
from penstock.ops.bench.routes import route_tables
from penstock.ops.bench.serving import policies
from penstock.ops.chaos import chaos_tables
from penstock.ops.figures.model_families import model_families

ROOT = Path(__file__).resolve().parents[2]
TABLES: Mapping[str, Callable[[], str]] = {
    "runs": run_table,
    **cpu_tables.TABLES,
    **cellular_tables.TABLES,
    **generation_tables.TABLES,
    **pipeline_tables.TABLES,
    **pipeline_tables.OF_MODELS,
    **delivery_tables.TABLES,
    **gpu_tables.TABLES,
    **route_tables.TABLES,
    **policies.TABLES,
    **chaos_tables.TABLES,
    "models": model_families,
}
_MARKED = re.compile(r"(<!-- figures:([a-z0-9-]+) -->\n).*?(<!-- /figures -->)", re.DOTALL)


class UnknownTable(Exception):
    """A marker names no table. The message lists the tables."""


def stale_files() -> dict[Path, str]:
    """Markdown files whose tables are not current, each with the text that it should have."""
    current = {path: path.read_text(encoding="utf-8") for path in markdown_files(ROOT)}
    renewed = {path: regenerated(text) for path, text in current.items()}
    return {path: text for path, text in renewed.items() if text != current[path]}


def markdown_files(root: Path) -> list[Path]:
    """Those of the repository's first level and of its `ops` folder."""
    return sorted([*root.glob("*.md"), *root.glob("ops/**/*.md")])


def regenerated(text: str) -> str:
    """The text with the tables of today's runs.

    Raises:
        UnknownTable: a marker names no table.
    """
    return _MARKED.sub(lambda found: f"{found[1]}\n{_table(found[2])}\n\n{found[3]}", text)


def _table(name: str) -> str:
    if name not in TABLES:
        raise UnknownTable(f"There is no table {name!r}. Known: {', '.join(TABLES)}.")
    return TABLES[name]()
