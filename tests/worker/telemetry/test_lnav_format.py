"""The lnav format file fits the lines that a worker logs."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import structlog

from penstock.worker.telemetry.logs import configure_logs
from tests.log_events import common_fields, listed_fields

FILE = Path(__file__).parents[3] / "ops" / "deploy" / "lnav" / "penstock.json"
FORMAT: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))["penstock_log"]
LEVELS = ("debug", "info", "warning", "error", "critical")
KINDS = {"string": str, "integer": int, "float": float | int, "json": dict}


@pytest.mark.parametrize("level", LEVELS)
def test_a_line_has_the_fields_that_lnav_needs_and_one_level(level: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("json", "debug", worker=0)
    getattr(structlog.get_logger("penstock.test"), level)("event")
    line = json.loads(capsys.readouterr().err)
    needed = [FORMAT[f"{part}-field"] for part in ("timestamp", "level", "body")]
    assert set(needed) <= line.keys()
    assert [name for name, form in FORMAT["level"].items() if re.search(form, line["level"])] == [level]


def test_every_field_that_it_names_is_one_of_the_manual() -> None:
    fields = common_fields().union(*listed_fields().values()) | {"trace_id", "span_id", "trace_flags"}
    shown = [part["field"] for part in FORMAT["line-format"] if isinstance(part, dict)]
    named = {*FORMAT["value"], *shown, FORMAT["opid-field"]} - {"__timestamp__", "__level__"}
    assert named - fields == set()


def test_its_samples_are_lines_of_this_project_with_values_of_their_kinds() -> None:
    for sample in FORMAT["sample"]:
        line = json.loads(sample["line"])
        assert line["level"] == sample["level"]
        own = line.keys() - common_fields() - {"event"}
        assert own <= listed_fields()[line["event"]]
        for name, value in line.items():
            kind = FORMAT["value"].get(name, {}).get("kind")
            assert kind is None or isinstance(value, KINDS[kind]), name
