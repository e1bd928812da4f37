"""Filters: one small language, and errors that say what is expected."""

import json
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.ops.logs.errors import BadFilter
from penstock.ops.logs.lines.blocks import LineCounts, parse_block
from penstock.ops.logs.lines.filters import parse_filters, split_arguments
from penstock.ops.logs.lines.reader import EventSelection
from penstock.ops.logs.lines.tail import Tail
from tests.ops.logs.helpers import FLEET, HOST_A, HOST_B, batch, digest, line, lines

NOW_S = datetime(2026, 11, 22, 3, 30, tzinfo=UTC).timestamp()


def accepts(*texts: str, model: str | None = None, **fields: Any) -> bool:
    """Whether a line passes. `model`: that of its worker, by a line before it."""
    event = {"event": "request_done", "level": "info", "timestamp": "2026-11-22T03:00:00Z", **fields}
    lines = [{"event": "worker_ready", "model": model}, event]
    selection = EventSelection(parse_filters(texts, NOW_S))
    part = parse_block("\n".join(map(json.dumps, lines)).encode(), 0, LineCounts(), selection.fields)
    return 1 in selection.keep(part, "worker.log").rows["place"].to_list()


LIBRARY = "failed: [Error 15]"  # messages of libraries have brackets


@pytest.mark.parametrize(
    ("filters", "fields", "is_kept"),
    [
        ("", {}, True),
        ("code=too_long worker=2", {"code": "too_long", "worker": 2}, True),
        ("code=too_long worker=2", {"code": "too_long", "worker": 1}, False),
        # Values are alternatives by commas, in which only `*` and `?` stand for other characters.
        ("event=batch_done,request_*", {}, True),
        ("event=batch_*", {}, False),
        ("code!=expired", {"code": "overloaded"}, True),
        ("code!=expired", {"code": "expired"}, False),
        ("code!=expired", {}, True),
        ("event=failed:?[Error?15]*", {"event": LIBRARY + " of the group"}, True),
        ("event=failed:?[Error??5]*", {"event": LIBRARY + "\nof the group"}, True),
        ("event=failed:?[Error?15]*", {"event": "failed: E"}, False),
        ("event!=failed:?[Error?15]", {"event": LIBRARY}, False),
        # A time is compared in the unit of its field; p is that of a request or a batch.
        ("p>50ms", {"total_ms": 51.0}, True),
        ("p>50ms", {"total_ms": 50.0}, False),
        ("p>=0.05s", {"event": "batch_done", "device_s": 0.05}, True),
        ("p>1ms", {"event": "worker_load", "device_s": 0.05}, False),
        ("p>50ms", {}, False),
        ("kafka_ms>2s", {"kafka_ms": 2001}, True),
        ("backlog_s<=100ms", {"backlog_s": 0.1}, True),
        ("tokens>=64", {"tokens": 64}, True),
        ("tokens>=64", {"tokens": "many"}, False),
        # A level means this and worse.
        ("level=warning", {"level": "error"}, True),
        ("level=warning", {"level": "info"}, False),
        # Times are ago, of the day, or whole.
        ("since=45m", {}, True),
        ("since=15m", {}, False),
        ("since=02:59", {}, True),
        ("since=03:01", {}, False),
        ("since=04:00", {}, True),  # of yesterday
        ("since=2026-11-22T03:00", {}, True),
        ("since=2026-11-22T04:00+01:00", {}, True),
        ("until=03:00", {}, False),
        ("until=03:01", {}, True),
        ("code=x", {"code": "x", "timestamp": ""}, True),
        ("since=1h", {"timestamp": ""}, False),
        # A truth is written as in the line.
        ("answered=true", {"answered": True}, True),
        ("answered=True", {"answered": True}, False),
    ],
)
def test_a_line_is_kept_if_all_terms_hold(filters: str, fields: dict[str, Any], is_kept: bool) -> None:
    assert accepts(*filters.split(), **fields) == is_kept


def test_the_model_is_the_lines_own_or_its_workers() -> None:
    assert accepts("model=intents", model="intents")
    assert not accepts("model=intents")
    assert accepts("model=intents", "named=3", model="intents", named=3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fast", "KEY=VALUE"),
        ("p=50ms", "compare it"),
        ("p>50", "p needs a unit: p>50ms"),
        ("tokens>5s", "tokens is no time"),
        ("tokens>many", "a number or a time"),
        ("level=loud", "debug, info, warning"),
        ("since=yesterday", "a time ago (10m)"),
        ("since>10m", "a time ago (10m)"),
        ("since=25:00", "a time ago (10m)"),
    ],
)
def test_a_malformed_filter_says_what_is_expected(text: str, expected: str) -> None:
    with pytest.raises(BadFilter) as raised:
        parse_filters([text], NOW_S)
    assert expected in str(raised.value)
    assert text.partition("=")[2] in str(raised.value) or text in str(raised.value)


@pytest.mark.parametrize("text", ["place=1", "time_s>5"])
def test_a_field_that_no_event_has_is_told(text: str) -> None:
    with pytest.raises(BadFilter, match="has a field"):
        digest(FLEET, filters=(text,))


@pytest.mark.parametrize(
    "text", ["worker=5", "worker=5.0", "predicted_s=2", "predicted_s=2.0", "offset=7", "offset=7.00"]
)
def test_a_number_is_the_same_however_it_is_written(text: str, tmp_path: Path) -> None:
    """Also for `tail`, which compared the texts of the line: `predicted_s=2.0` found no line with 2."""
    values: dict[str, Any] = {"worker": 5, "predicted_s": 2, "offset": 7.0}
    path = tmp_path / "worker.log"
    path.write_text(batch(0, **values) + batch(1) + line("batch_failed", **values) + line("batch_failed"))
    assert digest(path, filters=(text,)).num_kept == 2
    with closing(Tail([str(path)], parse_filters([text], NOW_S))) as tail:
        assert [one.name for one in tail.last(9)] == ["batch_done", "batch_failed"]


def test_files_and_filters_come_in_any_order() -> None:
    assert split_arguments(["a.log", "worker=2", "-", "p>5ms"]) == (["a.log", "-"], ["worker=2", "p>5ms"])
    assert split_arguments(["./a=b.log"]) == (["./a=b.log"], [])


@pytest.mark.parametrize(
    ("filters", "keep"),
    [
        (("p>30ms",), lambda one: one["device_s"] > 0.03),
        (("pid>2000", "padding_avoided>0.1"), lambda one: one["pid"] > 2000 and one["padding_avoided"] > 0.1),
        (("trigger!=timeout", "tokens<300"), lambda one: one["trigger"] != "timeout" and one["tokens"] < 300),
        (("timestamp=*T19:16:*",), lambda one: "T19:16:" in one["timestamp"]),
        (("event=request_done",), lambda one: False),
        (("model=all-minilm-l6-v2",), lambda one: True),
        (("model=other",), lambda one: False),
    ],
)
def test_the_batches_of_a_real_log_are_filtered_by_any_field(filters: tuple[str, ...], keep: Any) -> None:
    expected = [one for one in lines(FLEET) if one["event"] == "batch_done" and keep(one)]
    assert digest(FLEET, filters=filters).batches.all.batches == len(expected)


def test_a_worker_without_a_number_has_a_model_too() -> None:
    both = digest(HOST_A, HOST_B)
    assert both.models == {"echo"}
    assert digest(HOST_A, HOST_B, filters=("model=echo",)).batches.all.batches == both.batches.all.batches > 100
