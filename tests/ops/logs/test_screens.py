"""`penstock logs` as an operator runs it, over logs of real workers."""

import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.ops.cli.terminal import EXIT_PROBLEM, EXIT_USAGE
from penstock.ops.logs.lines import source
from tests.ops.command_line import penstock
from tests.ops.logs.helpers import FLEET, HOST_A, HOST_B, SAMPLES, batch, line, lines


def logs(*arguments: str | Path) -> str:
    code, text = penstock("logs", *map(str, arguments))
    assert code == 0, text
    return text


def test_help_names_each_command_and_the_filters() -> None:
    text = logs("--help")
    for command in ("summary", "request", "slow", "errors", "batches", "costs", "tail", "diff", "report"):
        assert f" {command} " in text
    assert "p>50ms" in text


def test_the_summary_is_one_screen() -> None:
    text = logs("summary", FLEET)
    for part in ("491 answered", "p50", "rejected", "cache", "padding avoided", "Stages, online"):
        assert part in text
    for part in ("Triggers", "timeout", "Slow periods: 1", "exited by SIGKILL", "1 death"):
        assert part in text


def test_the_summary_has_the_records_of_routes(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    outcomes = {"ok": 1200, "passed": 3, "invalid_request": 2, "too_long": 5}
    log.write_text(line("worker_load", routes={"orders": outcomes, "tickets\x1b[31m": {"ok": 1}}))
    text = logs("summary", log)
    assert "Routes finished records input topic enriched passed failed" in text
    assert "orders 1,200 3 too_long 5, invalid_request 2 tickets\ufffd[31m 1 0 0" in text
    assert "Routes" not in logs("summary", FLEET)


def test_the_summary_as_json() -> None:
    found = json.loads(logs("summary", SAMPLES, "--json"))
    answered = sum(one["answered"] for path in (FLEET, HOST_A, HOST_B) for one in lines(path) if "latency_le_s" in one)
    assert found["requests"]["answered"] == pytest.approx(answered)
    assert found["lines"]["broken"] == 0


def test_a_note_about_a_file_begins_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "worker.log.gz"
    packed = gzip.compress(HOST_A.read_bytes() * 50)
    path.write_bytes(packed[: len(packed) // 2])
    assert " worker.log.gz: its gzip data ends early" in logs("summary", path)


def test_the_summary_tells_that_the_clocks_of_two_hosts_differ(tmp_path: Path) -> None:
    """Host b's clock is 30 s behind that of host a, which gives it a partition at 03:01:00."""

    def rebalance(name: str, clock: str, partitions: str) -> str:
        return line(f"partitions_{name}", f"2026-11-22T{clock}Z", worker=0, partitions={"requests": partitions})

    a = rebalance("assigned", "03:00:00", "0-3") + rebalance("revoked", "03:01:00", "0-3")
    (tmp_path / "a.log").write_text(a + rebalance("assigned", "03:01:01", "0,2"))
    behind, right = (rebalance("assigned", clock, "1,3") for clock in ("03:00:31", "03:01:01"))
    (tmp_path / "b.log").write_text(behind)
    text = logs("summary", tmp_path / "a.log", tmp_path / "b.log")
    assert "By their clocks, workers of two logs held one partition for 29 s: the clocks of hosts differ" in text
    (tmp_path / "b.log").write_text(right)
    assert "By their clocks" not in logs("summary", tmp_path / "a.log", tmp_path / "b.log")
    assert "By their clocks" not in logs("summary", HOST_A, HOST_B)


@pytest.mark.parametrize("time", ["1970-01-01T00:00:09Z", "9999-12-31T23:59:59Z"])
@pytest.mark.parametrize("command", ["summary", "slow", "errors", "diff", "report"])
def test_a_clock_that_was_years_wrong_for_a_line_ends_no_command(tmp_path: Path, command: str, time: str) -> None:
    log = tmp_path / "worker.log"
    log.write_text(FLEET.read_text() + line("worker_load", time, answered=1) + line("stopped", time))
    given = {"diff": (log, log), "report": (tmp_path / "out.html", log)}.get(command, (log,))
    shown = logs(command, *given)
    if command == "summary":
        assert "12/s in the best 10 s" in shown
        assert "Slow periods: 1" in shown


def test_filters_choose_what_the_tables_show() -> None:
    text = logs("errors", SAMPLES, "code=too_long,empty")
    assert "too_long" in text
    assert "overloaded" not in text
    assert "No event passes the filters." in logs("errors", SAMPLES, "code=none")


@pytest.mark.parametrize("command", ["summary", "errors", "tail --no-follow", "report out.html", "request 0:36"])
def test_a_filter_by_a_field_that_nothing_has_is_an_error(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for term, near in (("corelation_id=3", " Near names: correlation_id"), ("zzzzz!=3", "")):
        code, text = penstock("logs", *command.split(), str(FLEET), term)
        assert code == EXIT_USAGE
        field = re.split("[!=]", term)[0]
        assert f"No event of these logs has a field '{field}', and no worker logs one.{near}" in text


def test_a_filter_by_a_field_that_other_events_have_is_none(tmp_path: Path) -> None:
    text = logs("summary", FLEET, "unanswered_s>1")
    assert "No event passes the filters. No event has the field unanswered_s." in text
    newer = tmp_path / "worker.log"
    newer.write_text(line("batch_fused", lanes=3))
    assert "lanes=3" in logs("tail", newer, "--no-follow", "lanes=3")
    assert "No event has" not in logs("summary", newer, "lanes=4")


def test_errors_by_code_and_by_event() -> None:
    text = logs("errors", HOST_A, HOST_B)
    for part in ("overloaded", "backend", "cannot compute this", "sequence_failed", "batch_failed", "owner_died"):
        assert part in text


def test_slow_batches_and_costs() -> None:
    done = [one for one in lines(HOST_A) if one["event"] == "request_done"]
    shown = logs("slow", HOST_A, "-n", "1")
    for name in {one["class"] for one in done}:
        slowest = max((one for one in done if one["class"] == name), key=lambda one: one["total_ms"])
        assert f" {slowest['partition']}:{slowest['offset']} " in shown.partition(f"Slowest {name} requests")[2]
    assert "padding avoided" in logs("batches", FLEET)
    text = logs("costs", FLEET)
    assert "bias" in text
    assert "penstock calibrate" in text  # the machine was busy: batches took twice as long as predicted


def test_a_sampled_request_is_a_chart() -> None:
    one = next(one for one in lines(HOST_A) if one["event"] == "request_done" and one["left_ms"] is not None)
    for name in (f"{one['topic']}-{one['partition']}-{one['offset']}", one["correlation_id"]):
        text = logs("request", name, HOST_A, HOST_B)
        for part in ("produced", "kafka", "tokenize", "schedule", "compute", "reply made", "its deadline", "batch of"):
            assert part in text
        assert one["correlation_id"] in text


def test_a_request_is_tied_to_its_batch_and_its_failures(tmp_path: Path) -> None:
    path = tmp_path / "worker.log"
    of_worker: dict[str, Any] = {"worker": 0, "pid": 7}
    sample = next(one for one in lines(HOST_A) if one["event"] == "request_done")
    path.write_text(
        line("batch_failed", level="warning", batch=812, sequences=3, error="OSError()", **of_worker)
        + line("batch_failed", level="warning", batch=813, sequences=4, error="OSError()", **of_worker)
        + line("batch_failed", level="warning", batch=812, sequences=5, error="OSError()", worker=1, pid=8)
        + json.dumps({**sample, **of_worker, "batch": 812})
    )
    text = logs("request", sample["correlation_id"], path)
    assert "It ran in batch 812, of " in text
    assert "batch=812 sequences=3" in text
    assert "sequences=4" not in text
    assert "sequences=5" not in text


def test_a_rejected_request_tells_why_and_what_happened_meanwhile() -> None:
    one = next(one for one in lines(HOST_A) if one["event"] == "request_refused" and one["code"] == "backend")
    text = logs("request", f"{one['topic']}-{one['partition']}-{one['offset']}", HOST_A)
    for part in ("request_refused", "code=backend", "cannot compute this", "Meanwhile", "sequence failed"):
        assert part in text


def test_a_request_that_no_line_names_has_neighbours() -> None:
    offsets = sorted(one["offset"] for one in lines(HOST_A) if one["event"] == "request_done" and one["partition"] == 0)
    missing = next(offset + 1 for offset in offsets if offset + 1 not in offsets and offset < offsets[-1])
    code, text = penstock("logs", "request", f"penstock.requests.echo-0-{missing}", str(HOST_A))
    assert code == EXIT_PROBLEM
    assert "No line names request" in text
    assert "two answered requests of each second" in text
    assert text.count("The next sampled record") == 2


def test_a_uuid_is_found_by_its_hexadecimal(tmp_path: Path) -> None:
    path = tmp_path / "worker.log"
    uuid = "123e4567-e89b-12d3-a456-426614174000"
    path.write_text(line("request_refused", code="empty", correlation_id=uuid.replace("-", ""), topic="t", partition=1))
    assert "code=empty" in logs("request", uuid, path)


def test_two_runs_side_by_side(tmp_path: Path) -> None:
    text = logs("diff", HOST_A, FLEET)
    for part in ("host-a.log", "fleet.log", "latency p99", "from the cache", "trigger max_batch", "model"):
        assert part in text
    code, text = penstock("logs", "diff", str(HOST_A), str(FLEET), str(HOST_B))
    assert (code, "diff compares two logs" in text) == (EXIT_USAGE, True)


def test_two_runs_of_one_name_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    logs_of = [Path(version) / "worker.log" for version in ("v1", "v2")]
    for path in logs_of:
        path.parent.mkdir()
        path.write_text(HOST_A.read_text())
    head = logs("diff", *logs_of)
    assert head.index("v1/worker.log") < head.index("v2/worker.log")


def test_the_tail_of_standard_input_without_following(monkeypatch: pytest.MonkeyPatch) -> None:
    """All lines were shown, whatever their number."""
    monkeypatch.setattr(source, "open_input", lambda path: FLEET.open("rb"))
    shown = logs("tail", "-", "--no-follow", "-n", "2", "level=warning")
    assert shown == logs("tail", FLEET, "--no-follow", "-n", "2", "level=warning")


def test_the_tail_of_a_log_without_following() -> None:
    text = logs("tail", FLEET, "--no-follow", "-n", "2", "event=member_exited")
    assert text.count("member_exited") == 2
    assert "exit_code=0" in text


def test_standard_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with FLEET.open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        from typer.testing import CliRunner

        from penstock.ops.cli.main import app

        result = CliRunner().invoke(app, ["logs", "summary", "-"], input=FLEET.read_bytes(), prog_name="penstock")
    assert result.exit_code == 0
    assert "491 answered" in result.output


def test_nothing_of_a_log_controls_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "worker.log"
    evil = "\x1b[2J\x1b]0;title\x07"
    path.write_text(
        batch(0, trigger=evil)
        + line("request_refused", code=evil, reason=evil, topic=evil, partition=0, offset=1, correlation_id=evil)
        + line(evil, level="error", exception=evil, **{evil: evil})
        + line("partitions_assigned", partitions={"t": evil})
        + line("worker_ready", model=evil)
        + '{"event": "'
        + evil
    )
    for command in ("summary", "slow", "errors", "batches", "costs", "tail --no-follow", "request t-0-1"):
        _, text = penstock("logs", *command.split(), str(path))
        assert "\x1b" not in text
        assert "\x07" not in text


def test_errors_of_the_command_line(tmp_path: Path) -> None:
    code, text = penstock("logs", "summary", str(tmp_path / "none"))
    assert (code, "There is no file or directory" in text) == (EXIT_PROBLEM, True)
    code, text = penstock("logs", "summary", str(FLEET), "p>50")
    assert (code, "p needs a unit: p>50ms" in text) == (EXIT_USAGE, True)


def test_without_polars_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    code, text = penstock("logs", "summary", str(FLEET))
    assert (code, "pip install 'penstock[logs]'" in text) == (EXIT_PROBLEM, True)


def test_the_lines_of_a_request_in_several_logs_are_in_order_of_time(tmp_path: Path) -> None:
    place = {"topic": "penstock.requests.m", "partition": 1, "offset": 7}
    (tmp_path / "a.log").write_text(line("request_refused", "2026-11-22T03:00:09Z", code="backend", **place))
    (tmp_path / "b.log").write_text(line("owner_died", "2026-11-22T03:00:02Z", deaths=1, **place))
    text = logs("request", "1:7", tmp_path)
    assert 0 < text.index("owner_died") < text.index("code=backend")


def test_rotated_logs_are_read_oldest_first(tmp_path: Path) -> None:
    ready = line("worker_ready", "2026-11-22T02:00:00Z", model="intents")
    (tmp_path / "worker.log").write_text(batch(20))
    (tmp_path / "worker.log.1").write_text(batch(10))
    (tmp_path / "worker.log.2.gz").write_bytes(gzip.compress(batch(5).encode()))
    (tmp_path / "worker.log.10").write_text(ready + batch(0))
    for given in ([tmp_path], sorted(tmp_path.iterdir())):
        assert "Batches 4," in logs("batches", *given, "model=intents")


@pytest.mark.parametrize("dates", [("20261121", "20261122"), ("2026-11-30", "2026-12-01")])
def test_logs_that_are_rotated_by_date_are_read_oldest_first(dates: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "worker.log").write_text(batch(20))
    (tmp_path / f"worker.log-{dates[0]}").write_text(line("worker_ready", model="intents") + batch(0))
    (tmp_path / f"worker.log-{dates[1]}").write_text(batch(10))
    assert "Batches 3," in logs("batches", tmp_path, "model=intents")


@pytest.mark.parametrize("command", ["summary", "slow", "batches", "costs", "diff"])
@pytest.mark.parametrize("columns", ["50", "80"])
def test_a_narrow_screen_has_the_same_figures(command: str, columns: str) -> None:
    """80 columns are also those of a pipe or a file. `445 ms` was shown as `445 m`, and some columns not at all."""
    given = (HOST_A, HOST_B) if command == "diff" else (FLEET,)
    wide, narrow = (penstock("logs", command, *map(str, given), env={"COLUMNS": one})[1] for one in ("200", columns))
    no_bars = str.maketrans("", "", " ▏▎▍▌▋▊▉█")
    assert sorted(narrow.translate(no_bars)) == sorted(wide.translate(no_bars))
