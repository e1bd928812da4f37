"""The signals of one worker process, with a broker that is away: SIGHUP drains, SIGTTIN and SIGTTOU do nothing."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

COMMAND = [
    *(sys.executable, "-c", "from penstock.ops.cli.main import main; main()", "worker", "--log-format", "json"),
    *("--model", "null", "--bootstrap-servers", "127.0.0.1:1"),
]


@pytest.fixture
def worker(sighup: None) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(COMMAND, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def read_until(worker: subprocess.Popen[str], name: str, **values: object) -> None:
    assert worker.stderr is not None
    for line in worker.stderr:
        event: dict[str, object] = json.loads(line)
        if event["event"] == name and values.items() <= event.items():
            return
    raise AssertionError(f"it ended without {name}")


@pytest.mark.slow
def test_one_process_ignores_resizing_and_drains_on_hangup(worker: subprocess.Popen[str]) -> None:
    read_until(worker, "worker_starting")
    worker.send_signal(signal.SIGTTIN)
    read_until(worker, "kafka_unreachable")
    for number in (signal.SIGTTIN, signal.SIGTTOU):
        worker.send_signal(number)
        read_until(worker, "signal_ignored", signal=number.name)
    worker.send_signal(signal.SIGHUP)
    read_until(worker, "stopped")
    assert worker.wait(60) == 0
