"""`--local`: a command starts Kafka and a worker of its own, and leaves neither behind, however it ends."""

import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.ops.bench.common.processes import descendants
from penstock.ops.kafka.owned import OwnedFolder
from tests.engine.helpers import save_encoder, save_tokenizer

COMMAND = (sys.executable, "-c", "from penstock.ops.cli.main import main; main()")
# A broker, a worker, and a guard of each.
NUM_PROCESSES = 4


def embed(*arguments: str | Path, folders: Path | None = None) -> subprocess.Popen[str]:
    """`folders`: where it keeps what is temporary."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    environment["PENSTOCK_BOOTSTRAP_SERVERS"] = "127.0.0.1:1"  # of another cluster
    environment |= {} if folders is None else {"TMPDIR": str(folders)}
    return subprocess.Popen(
        [*COMMAND, "embed", "--local", "--model", "null", *map(str, arguments)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for(condition: Callable[[], object], timeout_s: float = 300.0) -> None:
    ends = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has not been reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.csv"
    path.write_text("text\nhello\nworld\n")
    return path


def test_a_job_runs_on_its_own_broker_and_worker_and_ends_them(source: Path, tmp_path: Path) -> None:
    save_encoder(tmp_path / "model", "bert")
    save_tokenizer(tmp_path / "model", ["hello", "world"])
    job = embed("--model", tmp_path / "model", source, tmp_path / "out.csv")
    below: set[int] = set()

    def ended() -> bool:
        below.update(descendants(job.pid))
        return job.poll() is not None

    wait_for(ended)
    said, _ = job.communicate()
    assert job.returncode == 0, said
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["text"] for row in rows] == ["hello", "world"]
    assert all(json.loads(row["embedding"]) and not row["error"] for row in rows)
    for phase in ("Starting Kafka on this machine.", f"Starting a worker for {tmp_path / 'model'} …"):
        assert phase in said
    assert len(below) >= NUM_PROCESSES
    wait_for(lambda: not any(map(is_alive, below)), 60.0)


@pytest.mark.usefixtures("sighup")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_job_that_is_ended_leaves_no_process_and_no_data(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    folders = tmp_path / "tmp"
    folders.mkdir()
    job = embed(source, tmp_path / "out.csv", folders=folders)
    wait_for(lambda: job.poll() is not None or len(descendants(job.pid)) >= NUM_PROCESSES)
    below = descendants(job.pid)
    kept = sorted(path.name[:15] for path in folders.glob("penstock-*"))
    job.send_signal(number)
    said, _ = job.communicate(timeout=300)
    assert len(below) >= NUM_PROCESSES, said
    assert kept == ["penstock-kafka-", "penstock-local-"]
    assert job.returncode == (-number if number == signal.SIGKILL else 128 + number), said
    wait_for(lambda: not any(map(is_alive, below)), 60.0)
    assert not (tmp_path / "out.csv").exists()
    if number == signal.SIGKILL:  # the next start cleans up
        monkeypatch.setattr(tempfile, "tempdir", str(folders))
        for prefix in kept:
            OwnedFolder(prefix).remove()
    assert list(folders.glob("penstock-*")) == []


def test_a_worker_that_cannot_start_is_an_error_of_one_sentence(source: Path, tmp_path: Path) -> None:
    job = embed("--model", tmp_path / "no-such-checkpoint", source, tmp_path / "out.csv")
    said, _ = job.communicate(timeout=300)
    assert job.returncode == 1
    last = said.splitlines()[-1]
    assert last.startswith("Error: ")
    assert "no-such-checkpoint" in last
    assert "Traceback" not in said
