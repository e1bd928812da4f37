"""The documents name files, log events and metrics that exist, and the manual has every page in its navigation."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MANUAL = ROOT / "ops" / "docs"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *MANUAL.rglob("*.md")])
_NAMED = re.compile(r"`((?:producer|worker|engine|scheduler|cache|ops|tests)/[\w./-]+)`")
_LINKED = re.compile(r"\]\((?!https?:)([^)#]+)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_path_that_a_document_names_or_links_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    named = [ROOT / path for path in _NAMED.findall(text)]
    linked = [document.parent / path for path in _LINKED.findall(text)]
    assert [str(path) for path in [*named, *linked] if not path.exists()] == []


def test_every_page_of_the_manual_is_reachable() -> None:
    navigation = (ROOT / "ops" / "mkdocs.yml").read_text(encoding="utf-8")
    decisions = (MANUAL / "decisions" / "index.md").read_text(encoding="utf-8")
    for page in MANUAL.rglob("*.md"):
        name = page.relative_to(MANUAL).as_posix()
        assert name in navigation or page.name in decisions, f"{name} is in no navigation"


def test_every_log_event_and_metric_of_the_operations_page_is_in_the_code() -> None:
    page = (MANUAL / "operations.md").read_text(encoding="utf-8")
    logs, metrics = page.split("## Logs")[1].split("## Metrics")
    files = [path for room in ("producer", "worker", "engine") for path in (ROOT / room).rglob("*.py")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in files)
    named = [*table_names(logs), *(f"penstock_{name.removesuffix('_total')}" for name in table_names(metrics))]
    assert len(named) > 20
    assert [name for name in named if f'"{name}"' not in code] == []


def table_names(text: str) -> list[str]:
    """Names in backticks in the first column of the tables of a page, without Prometheus labels."""
    first_column = "\n".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))
    return [name.split("{")[0] for name in re.findall(r"`([^`]+)`", first_column)]


def test_readme_and_architecture_stay_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
    assert len((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()) <= 200
