"""`penstock worker`: settings in force, given by the command line or the environment or resolved for the engine."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock.ops.kafka import MockBroker
from penstock.worker.settings import WorkerSettings

# The command itself, with an engine that does no work and says that it is on the device of the first argument.
COMMAND = """
import sys
from dataclasses import replace
from penstock.engine import NullEngine
from penstock.ops.cli.main import main
from penstock.worker import process

class Engine(NullEngine):
    def __init__(self, **options):
        super().__init__(**options)
        self._info = replace(self._info, device=device, padded=padded == "padded")

device, padded = sys.argv[1:3]
del sys.argv[1:3]
process.NullEngine = Engine
main()
"""


def resolved(
    *options: str, device: str, engine: str = "packed", env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The event `settings_resolved` of a worker that is started with these options; the worker is ended then."""
    with MockBroker() as broker:
        process = subprocess.Popen(
            [
                *(sys.executable, "-c", COMMAND, device, engine, "worker", "--model", "null", "--log-format", "json"),
                *("--bootstrap-servers", broker.bootstrap_servers, *options),
            ],
            env={**os.environ, **(env or {})},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        events: list[dict[str, Any]] = []
        with process, process.stderr as lines:
            for line in lines:
                events.append(json.loads(line))
                if events[-1]["event"] == "settings_resolved":
                    process.kill()
                    return events[-1]
    raise AssertionError(f"no settings_resolved among {events}")


GPU, CPU = "NVIDIA H200", "cpu"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "options", "env", "expected"),
    [
        (CPU, (), {}, (1024, 256)),
        (GPU, (), {}, (16_384, 1024)),
        (GPU, ("--max-batch-tokens", "512"), {}, (512, 1024)),
        (GPU, (), {"PENSTOCK_MAX_BATCH_SEQUENCES": "7"}, (16_384, 7)),
    ],
)
def test_a_batch_cap_that_is_not_given_follows_the_device(
    device: str, options: tuple[str, ...], env: Mapping[str, str], expected: tuple[int, int]
) -> None:
    settings = resolved(*options, device=device, env=env)
    assert (settings["max_batch_tokens"], settings["max_batch_sequences"]) == expected


@pytest.mark.slow
def test_the_log_says_each_value_in_force_and_its_reason() -> None:
    env = {"PENSTOCK_MAX_WAIT_MS": "7", "PENSTOCK_LANES": "9"}
    settings = resolved("--lanes", "3", "--once", device=GPU, engine="padded", env=env)
    assert (settings["lanes"], settings["max_wait_ms"], settings["once"]) == (3, 7.0, True)  # an option has precedence
    assert (settings["engine"], settings["topic"]) == ("padded", "penstock.requests.null")
    reasons = settings["reasons"]
    assert reasons["given"] == ["bootstrap_servers", "lanes", "log_format", "model", "once"]
    assert reasons["environment"] == ["max_wait_ms"]
    assert reasons["default for cuda"] == ["max_batch_sequences", "max_batch_tokens"]
    assert "partition" in reasons["default"]
    assert set(WorkerSettings.model_fields) <= settings.keys()


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", "2>&-"])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_worker_without_standard_files_runs_and_logs(tmp_path: Path, closed: str, processes: int) -> None:
    """As a daemon may be started. Otherwise the first sockets and files take the numbers of the standard ones."""
    log = tmp_path / "log"

    def members_that(event: str) -> int:
        lines = log.read_text().split("\n")[:-1] if log.exists() else []  # what follows may be a part of one
        events = map(json.loads, lines)
        return len({logged["pid"] for logged in events if logged["event"] == event})

    command = [sys.executable, "-c", COMMAND, "cpu", "packed", "worker", "--model", "null"]
    command += ["--processes", str(processes), "--log-file", str(log), "--log-format", "json"]
    command += ["--bootstrap-servers", "127.0.0.1:1"]
    with subprocess.Popen(["/bin/sh", "-c", f'exec "$@" {closed}', "sh", *command]) as process:
        while members_that("kafka_unreachable") < processes and process.poll() is None:
            time.sleep(0.05)
        process.terminate()
    assert process.returncode == 0, log.read_text()
    assert members_that("stopped") == processes
    assert members_that("callback_failed") == 0  # what is printed to a standard file that is not there
