"""The documents name files and metrics that exist, and all log events; the manual's navigation has every page."""

import ast
import functools
import re
import subprocess
from pathlib import Path

import pytest

from penstock.engine.families import FAMILIES
from penstock.ops.logs.lines.filters import EVENT_FIELDS
from tests.log_events import ROOMS, common_fields, listed_fields, unlisted_in

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


def test_the_first_page_of_the_manual_has_the_tasks_of_the_readme() -> None:
    tasks = [
        re.findall(r"^\| (?!---)(.+?) \|", path.read_text(encoding="utf-8").split("## Tasks")[1], re.MULTILINE)
        for path in (ROOT / "README.md", MANUAL / "index.md")
    ]
    assert tasks[0] == tasks[1]


def test_the_table_of_models_has_every_family_once() -> None:
    section = (MANUAL / "models.md").read_text(encoding="utf-8").split("## Families\n")[1].split("\n## ")[0]
    rows = [line.split("|")[2] for line in section.splitlines() if line.startswith("| ")]
    named = re.findall(r"`([\w-]+)`", "".join(rows))
    assert sorted(FAMILIES.keys() - named) == []
    assert len(named) == len(set(named))


@pytest.mark.slow
def test_the_manual_lists_every_log_event_with_its_fields_and_no_other() -> None:
    """Where a call takes fields from a mapping, the check of `tests/conftest.py` sees them when it runs."""
    listed, logged = listed_fields(), logged_events()
    assert sorted(listed) == sorted(logged)
    for event, (fields, has_others) in logged.items():
        unknown, stale = fields - listed[event], listed[event] - fields
        assert not unknown, f"{event} logs {unknown}"
        assert has_others or not stale, f"{event} does not log {stale}"


@pytest.mark.parametrize(
    "log", sorted((ROOT / "tests" / "ops" / "logs" / "samples").glob("*.log")), ids=lambda path: path.name
)
def test_the_manual_lists_what_real_workers_have_logged(log: Path) -> None:
    assert unlisted_in(log.read_text(encoding="utf-8").splitlines()) == set()


def test_filters_of_logs_know_the_fields_that_the_manual_lists() -> None:
    of_a_start = ("worker_starting", "settings_resolved")
    fields = [fields for event, fields in listed_fields().items() if event not in of_a_start]
    assert common_fields().union(*fields) == EVENT_FIELDS


def test_no_event_has_a_field_of_every_line_but_those_that_are_documented() -> None:
    own = {"model", "worker", "suppressed", "exception"}
    clashes = {event: fields & common_fields() - own for event, fields in listed_fields().items()}
    assert {event: fields for event, fields in clashes.items() if fields} == {}


def test_every_promise_of_the_delivery_page_names_tests_that_exist() -> None:
    page = (MANUAL / "delivery.md").read_text(encoding="utf-8")
    section = page.split("## Promises and their tests")[1].split("\n## ")[0]
    promises = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(promises) > 15
    for promise in promises:
        named = _NAMED_TEST.findall(promise)
        assert named, promise
        for path, test in named:
            assert test in defined_functions(ROOT / path), f"{path}::{test}"


@functools.cache
def defined_functions(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, _FUNCTION))


def logged_events() -> dict[str, tuple[set[str], bool]]:
    """Event -> the fields that calls of a structlog logger name, and whether one takes others from a mapping."""
    texts = [path.read_text(encoding="utf-8") for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    trees = [ast.parse(text) for text in texts if "log" in text]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    logged: dict[str, tuple[set[str], bool]] = {}
    for call in calls:
        if _LOGGER.fullmatch(ast.unparse(call.func)):
            event = ast.literal_eval(call.args[0])
            fields, has_others = logged.get(event, (set(), False))
            named = {keyword.arg for keyword in call.keywords if keyword.arg is not None}
            has_mapping = any(keyword.arg is None for keyword in call.keywords)
            logged[event] = fields | (named - {"exc_info"}), has_others or has_mapping
    return logged


def test_no_file_holds_a_conflict_of_a_merge() -> None:
    marks = re.compile(rb"^(<{7}|>{7}) ", re.MULTILINE)
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout.split(b"\0")
    found = [path.decode() for path in tracked if path and (ROOT / path.decode()).is_file()]
    assert [path for path in found if marks.search((ROOT / path).read_bytes())] == []


def test_readme_and_architecture_stay_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
    assert len((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()) <= 200
