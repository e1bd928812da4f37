"""Which events reach the log, in which form and how often."""

import json
import logging
import os
import resource
import subprocess
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import structlog
from aiokafka.errors import NotLeaderForPartitionError, TopicAuthorizationFailedError
from rich.text import Text

from penstock.worker.telemetry.logs import EventLimit, RepeatFilter, configure_logs, label_logs


def record(name: str, message: str) -> logging.LogRecord:
    return logging.LogRecord(name, logging.WARNING, __file__, 1, message, None, None)


def test_a_library_that_repeats_itself_is_logged_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("penstock.worker.telemetry.logs.time.monotonic", lambda: now)
    repeats = RepeatFilter(5.0)
    assert repeats.filter(record("aiokafka", "unable to connect"))
    now = 1004.9
    assert not repeats.filter(record("aiokafka", "unable to connect"))
    assert repeats.filter(record("aiokafka", "something else"))
    assert repeats.filter(record("aiokafka.conn", "unable to connect"))
    now = 1005.0
    assert repeats.filter(record("aiokafka", "unable to connect"))


def test_this_projects_events_always_pass() -> None:
    repeats = RepeatFilter(5.0)
    assert all(repeats.filter(record("penstock.worker", "batch_done")) for _ in range(3))


def events(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_json_lines_hold_the_event_its_place_and_its_values(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("json", "info")
    structlog.get_logger("penstock.test").info("batch_done", sequences=3)
    logging.getLogger("some_library").warning("lost %s", "node")
    ours, theirs = events(capsys)
    assert (ours["event"], ours["sequences"], ours["logger"], ours["level"]) == (
        "batch_done",
        3,
        "penstock.test",
        "info",
    )
    assert ours["timestamp"].endswith("Z")
    assert (theirs["event"], theirs["logger"], theirs["level"]) == ("lost node", "some_library", "warning")


def test_a_label_does_not_replace_an_events_own_field(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("json", "info", worker=1, pid=2)
    structlog.get_logger("penstock.test").info("member_exited", worker=3)
    [line] = events(capsys)
    assert (line["worker"], line["pid"]) == (3, 2)


def test_labels_may_be_added_once_they_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("json", "info", worker=1)
    label_logs({"model": "tiny"})
    structlog.get_logger("penstock.test").info("event")
    logging.getLogger("some_library").warning("lost")
    assert [(line["worker"], line["pid"], line["model"]) for line in events(capsys)] == [(1, os.getpid(), "tiny")] * 2


def test_json_has_the_attributes_of_the_service_and_text_has_not(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("json", "info")
    structlog.get_logger("penstock.test").info("event")
    logging.getLogger("some_library").warning("lost")
    for line in events(capsys):
        assert line["service.name"] == "penstock-worker"
        assert line["service.version"] == version("penstock")
        assert line["service.instance.id"].endswith(f"-{os.getpid()}")
    configure_logs("console", "info")
    structlog.get_logger("penstock.test").info("event")
    assert "service." not in capsys.readouterr().err


def test_a_second_has_so_many_lines_of_an_event_and_the_next_line_has_the_number_of_the_others() -> None:
    now = 7.0
    limit = EventLimit(2, lambda: now)

    def passed(event: str) -> list[Any]:
        try:
            return [limit(None, "info", {"event": event}).get("suppressed")]
        except structlog.DropEvent:
            return []

    assert [passed("batch_failed") for _ in range(5)] == [[None], [None], [], [], []]
    assert passed("other") == [None]
    now = 7.9
    assert passed("batch_failed") == []
    now = 8.0
    assert [passed("batch_failed") for _ in range(3)] == [[4], [None], []]


def test_hot_events_are_limited_in_the_log(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.worker.telemetry.logs.EventLimit", partial(EventLimit, clock=lambda: 7.0))
    configure_logs("json", "info")
    log = structlog.get_logger("penstock.test")
    for _ in range(1000):
        log.info("event")
    assert len(events(capsys)) == 100


def test_the_values_of_variables_are_in_no_trace(capsys: pytest.CaptureFixture[str]) -> None:
    payload = " ".join(["private"] * 2)
    for log_format in ("json", "ecs", "console"):
        configure_logs(log_format, "info")
        try:
            len(payload) / 0
        except ZeroDivisionError:
            structlog.get_logger("penstock.test").exception("bug")
        logged = capsys.readouterr().err
        assert "ZeroDivisionError" in logged
        assert payload not in logged


def test_json_lines_hold_tracebacks(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("json", "info")
    try:
        raise ValueError("broken")
    except ValueError:
        structlog.get_logger("penstock.test").exception("bug")
    [line] = events(capsys)
    assert "ValueError: broken" in line["exception"]


def test_the_level_is_for_this_projects_events_and_libraries_only_warn(capsys: pytest.CaptureFixture[str]) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))  # as the CLI's commands do
    configure_logs("json", "debug")
    structlog.get_logger("penstock.test").debug("shown")
    logging.getLogger("aiokafka").info("not shown")
    assert [event["event"] for event in events(capsys)] == ["shown"]


def test_a_log_file_is_opened_again_once_it_was_moved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, moved = tmp_path / "worker.log", tmp_path / "worker.log.1"
    configure_logs("auto", "info", path)
    log = structlog.get_logger("penstock.test")
    log.info("first")
    path.rename(moved)  # as logrotate does
    log.info("second")
    log.info("third")
    assert [json.loads(line)["event"] for line in moved.read_text().splitlines()] == ["first"]
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["second", "third"]
    path.unlink()
    log.info("fourth")
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["fourth"]
    assert capsys.readouterr().err == ""


def test_a_log_file_that_cannot_be_opened_is_an_error_at_the_start_and_a_note_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(FileNotFoundError):
        configure_logs("json", "info", tmp_path / "none" / "worker.log")
    folder = tmp_path / "logs"
    folder.mkdir()
    configure_logs("json", "info", folder / "worker.log")
    log = structlog.get_logger("penstock.test")
    folder.rename(tmp_path / "moved")
    log.info("lost")
    reason, lost = capsys.readouterr().err.splitlines()
    assert reason == f"{folder / 'worker.log'} cannot be written: No such file or directory. Its lines go to stderr."
    assert json.loads(lost)["event"] == "lost"
    folder.mkdir()
    log.info("kept")
    [line] = (folder / "worker.log").read_text().splitlines()
    assert json.loads(line)["event"] == "kept"


def test_a_full_disk_costs_stderr_a_line_for_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "worker.log"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    configure_logs("json", "info", path)
    log = structlog.get_logger("penstock.test")
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        for number in range(50):
            log.info(f"event_{number}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    log.info("last")
    reason, *told = capsys.readouterr().err.splitlines()
    assert "worker.log cannot be written: File too large." in reason
    assert [json.loads(line)["event"] for line in told] == [f"event_{number}" for number in range(50)]
    assert path.read_bytes()[100:].count(b"{") == 1  # the last line, behind the cut one, and no other
    assert b'"last"' in path.read_bytes()


MEMBER = """
import sys
from pathlib import Path
import structlog
from penstock.worker.telemetry.logs import configure_logs
configure_logs("json", "info", Path(sys.argv[1]), worker=int(sys.argv[2]))
log = structlog.get_logger("penstock.test")
for number in range(60):
    log.info(f"event_{number}", text="x" * 20_000)
"""


@pytest.mark.slow
def test_members_share_a_log_file(tmp_path: Path) -> None:
    path = tmp_path / "worker.log"
    members = [subprocess.Popen([sys.executable, "-c", MEMBER, str(path), str(worker)]) for worker in range(3)]
    assert [member.wait(60) for member in members] == [0, 0, 0]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted((line["worker"], line["event"]) for line in lines) == sorted(
        (worker, f"event_{number}") for worker in range(3) for number in range(60)
    )


LIBRARIES = """
import warnings
from penstock.worker.telemetry.logs import configure_logs
configure_logs("json", "info")
import transformers
transformers.utils.logging.get_logger("transformers.models.bert").warning("lost %s", "node")
warnings.warn("old name", FutureWarning)
"""


@pytest.mark.slow
def test_transformers_and_warnings_are_lines_of_the_log() -> None:
    """In a process of its own, where transformers is imported after the set-up, as a worker does."""
    environment = {name: value for name, value in os.environ.items() if name != "CI"}  # there transformers propagates
    command = [sys.executable, "-c", LIBRARIES]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    logged = {line["logger"]: line for line in map(json.loads, done.stderr.splitlines())}
    assert (done.returncode, done.stdout) == (0, "")
    assert (logged["transformers.models.bert"]["event"], logged["transformers.models.bert"]["level"]) == (
        "lost node",
        "warning",
    )
    assert "FutureWarning: old name" in logged["py.warnings"]["event"]


def test_auto_is_json_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("auto", "info")
    structlog.get_logger("penstock.test").info("event")
    assert [event["event"] for event in events(capsys)] == ["event"]


SETTINGS = {
    "model": "m",
    "device": "cpu",
    "served_name": "cards",
    "lanes": 2,
    "cache_path": None,
    "reasons": {
        "given": ["model"],
        "environment": ["served_name"],
        "found for this model and machine": ["device"],
        "default for cpu": ["lanes"],
        "default": ["cache_path"],
    },
}


def test_a_terminal_shows_the_settings_that_were_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("console", "info")
    structlog.get_logger("penstock.test").info("settings_resolved", **SETTINGS)
    said = Text.from_ansi(capsys.readouterr().err).plain
    assert all(f"{name}=" in said for name in ("model", "device", "served_name"))
    assert not any(f"{name}=" in said for name in ("lanes", "cache_path", "reasons"))
    configure_logs("json", "info")
    structlog.get_logger("penstock.test").info("settings_resolved", **SETTINGS)
    (line,) = events(capsys)
    assert line.items() >= SETTINGS.items()


@pytest.mark.parametrize("error", [NotLeaderForPartitionError(), NotLeaderForPartitionError])
def test_a_terminal_shows_no_fault_that_aiokafka_retries(error: object, capsys: pytest.CaptureFixture[str]) -> None:
    logging.getLogger("aiokafka").setLevel(logging.NOTSET)  # commands silence it, and so do their tests
    configure_logs("console", "info")
    client = logging.getLogger("aiokafka.client")
    client.error("Failed fetch offsets from %s: %s", 1, error)
    assert capsys.readouterr().err == ""
    client.error("Failed fetch offsets from %s: %s", 1, TopicAuthorizationFailedError())
    assert "TopicAuthorizationFailedError" in capsys.readouterr().err
    configure_logs("json", "info")
    client.error("Failed to send to %s: %s", 1, error)
    assert len(events(capsys)) == 1


def test_a_worker_with_a_log_file_tells_on_stderr_that_it_is_ready(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logs("json", "info", tmp_path / "worker.log")
    log = structlog.get_logger("penstock.worker")
    log.info("model_loaded", model="m")
    assert capsys.readouterr().err == ""
    log.info("worker_ready", model="m", topic="penstock.requests.m", tasks=["embed"])
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "worker_ready" in said
    assert "topic=penstock.requests.m" in Text.from_ansi(said).plain
    written = (tmp_path / "worker.log").read_text().splitlines()
    assert [json.loads(line)["event"] for line in written] == ["model_loaded", "worker_ready"]
