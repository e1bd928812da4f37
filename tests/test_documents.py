"""The documents name files and metrics that exist, and all log events; the manual's navigation has every page."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MANUAL = ROOT / "ops" / "docs"
# Not those in ops/bench/results, which stay as they were made.
_NOTES = [path for path in ROOT.glob("ops/bench/**/*.md") if "results" not in path.parts]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *MANUAL.rglob("*.md"), *_NOTES, *ROOT.glob("scheduler/*.md")])
_NAMED = re.compile(r"`((?:producer|worker|engine|scheduler|cache|ops|tests)/[\w./-]+)`")
_NAMED_TEST = re.compile(r"`(tests/[\w./-]+\.py)::(\w+)`")
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
_LOGGER = re.compile(r"(log|structlog\.get_logger\(.*\))\.(debug|info|warning|error|exception|critical)")
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


def test_the_operations_page_names_every_log_event_and_no_other() -> None:
    named = table_names(operations_page()[0])
    assert len(named) == len(set(named))
    assert sorted(named) == sorted(logged_events())


def test_every_metric_of_the_operations_page_is_in_the_code() -> None:
    metrics = [f"penstock_{name.removesuffix('_total')}" for name in table_names(operations_page()[1])]
    assert len(metrics) > 10
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "worker").rglob("*.py"))
    assert [name for name in metrics if f'"{name}"' not in code] == []


def test_every_promise_of_the_delivery_page_names_tests_that_exist() -> None:
    page = (MANUAL / "delivery.md").read_text(encoding="utf-8")
    section = page.split("## Promises and their tests")[1].split("\n## ")[0]
    promises = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(promises) > 15
    for promise in promises:
        named = _NAMED_TEST.findall(promise)
        assert named, promise
        for path, test in named:
            tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
            defined = {node.name for node in ast.walk(tree) if isinstance(node, _FUNCTION)}
            assert test in defined, f"{path}::{test}"


def operations_page() -> tuple[str, str]:
    """The sections about logs and about metrics."""
    page = (MANUAL / "operations.md").read_text(encoding="utf-8")
    logs, metrics = page.split("## Logs")[1].split("## Metrics")
    return logs, metrics


def logged_events() -> set[str]:
    """First arguments of the calls of a structlog logger, in the rooms that a worker or a client runs."""
    rooms = ("producer", "worker", "engine", "scheduler", "cache")
    trees = [ast.parse(path.read_text(encoding="utf-8")) for room in rooms for path in (ROOT / room).rglob("*.py")]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {ast.literal_eval(call.args[0]) for call in calls if _LOGGER.fullmatch(ast.unparse(call.func))}


def table_names(text: str) -> list[str]:
    """Names in backticks in the first column of the tables of a page, without Prometheus labels."""
    first_column = "\n".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))
    return [name.split("{")[0] for name in re.findall(r"`([^`]+)`", first_column)]


def test_readme_and_architecture_stay_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
    assert len((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()) <= 200
