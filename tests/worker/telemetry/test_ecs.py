"""The format `ecs`: the schema's names where it has one, and this project's own fields below its name."""

import json
import logging
import os
from typing import Any

import pytest
import structlog

from penstock.worker.telemetry.logs import configure_logs

TRACE = {"trace_id": "a" * 32, "span_id": "b" * 16}


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_an_event_has_the_schemas_names(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("ecs", "info", worker=2)
    structlog.get_logger("penstock.test").warning("reply_undeliverable", error="X()", offset=7, **TRACE)
    [line] = lines(capsys)
    assert line.pop("@timestamp").endswith("Z")
    assert line.pop("service.version")
    assert line.pop("service.node.name").endswith(f"-{os.getpid()}")
    assert line == {
        "log.level": "warning",
        "message": "reply_undeliverable",
        "log.logger": "penstock.test",
        "process.pid": os.getpid(),
        "trace.id": "a" * 32,
        "span.id": "b" * 16,
        "service.name": "penstock-worker",
        "error.message": "X()",
        "ecs.version": "8.11.0",
        "event.dataset": "penstock.worker",
        "event.action": "reply_undeliverable",
        "penstock": {"worker": 2, "offset": 7},
    }


def test_a_librarys_message_is_no_action(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("ecs", "info")
    logging.getLogger("some_library").warning("lost %s", "node")
    [line] = lines(capsys)
    assert (line["message"], line["log.logger"]) == ("lost node", "some_library")
    assert not {"event.action", "penstock"} & line.keys()


def test_a_trace_is_the_errors(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("ecs", "info")
    try:
        raise ValueError("broken")
    except ValueError:
        structlog.get_logger("penstock.test").exception("bug")
    [line] = lines(capsys)
    assert "ValueError: broken" in line["error.stack_trace"]
