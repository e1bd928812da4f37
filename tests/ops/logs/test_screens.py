"""`penstock logs` as an operator runs it, over logs of real workers."""

import json
import sys
from pathlib import Path

import pytest

from penstock.ops.cli.screen import EXIT_PROBLEM, EXIT_USAGE
from tests.ops.logs.helpers import FLEET, HOST_A, HOST_B, SAMPLES, batch, line, lines
from tests.ops.test_cli import no_settings_from_outside, penstock

__all__ = ["no_settings_from_outside"]  # a fixture that is used by being here


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
    for part in ("491 answered", "p50", "rejected", "cache", "padding avoided", "Stages"):
        assert part in text
    for part in ("Triggers", "timeout", "Slow periods: 1", "exited by SIGKILL", "1 death"):
        assert part in text


def test_the_summary_as_json() -> None:
    found = json.loads(logs("summary", SAMPLES, "--json"))
    answered = sum(one["answered"] for path in (FLEET, HOST_A, HOST_B) for one in lines(path) if "latency_le_s" in one)
    assert found["requests"]["answered"] == pytest.approx(answered)
    assert found["lines"]["broken"] == 0


def test_filters_choose_what_the_tables_show() -> None:
    text = logs("errors", SAMPLES, "code=too_long,empty")
    assert "too_long" in text
    assert "overloaded" not in text
    assert "No event passes the filters." in logs("errors", SAMPLES, "code=none")


def test_errors_by_code_and_by_event() -> None:
    text = logs("errors", HOST_A, HOST_B)
    for part in ("overloaded", "backend", "cannot compute this", "sequence_failed", "batch_failed", "owner_died"):
        assert part in text


def test_slow_batches_and_costs() -> None:
    slowest = max((one for one in lines(HOST_A) if one["event"] == "request_done"), key=lambda one: one["total_ms"])
    assert f" {slowest['partition']}:{slowest['offset']} " in logs("slow", HOST_A, "-n", "1")
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
