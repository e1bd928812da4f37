"""The worker of `--local`: its log is left where an error names it, and nothing else is."""

import asyncio
import tempfile
from pathlib import Path

import pytest

from penstock.ops.cli.jobs.job_settings import FileJobSettings
from penstock.ops.cli.jobs.local_fleet import local_worker
from penstock.ops.demo import worker_child
from penstock.ops.demo.worker_child import WorkerFailed

_READY = """print('{"event": "partitions_assigned"}', flush=True); """


def run(program: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a program as the worker, until the work is done or it fails."""
    monkeypatch.setattr(worker_child, "_PENSTOCK", program)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    settings = FileJobSettings.model_validate({"model": "some/model", "local": True})

    async def work() -> None:
        async with local_worker(settings) as while_alive:
            await while_alive(asyncio.sleep(600 if "exit" in program else 0))

    asyncio.run(work())


@pytest.mark.parametrize("first", ["", _READY], ids=["at the start", "later"])
def test_the_log_of_a_worker_that_failed_is_kept(first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = f"import sys; {first}print('a trace', flush=True); sys.exit(3)"
    with pytest.raises(WorkerFailed, match="exit status 3") as failure:
        run(program, tmp_path, monkeypatch)
    (log,) = tmp_path.iterdir()
    assert str(log) in str(failure.value)
    assert "a trace" in log.read_text()


def test_no_log_is_left_where_the_error_says_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import sys; print('Error: There is no model some/model.'); sys.exit(2)"
    with pytest.raises(WorkerFailed, match=r"^There is no model some/model\.$"):
        run(program, tmp_path, monkeypatch)
    assert list(tmp_path.iterdir()) == []


def test_no_log_is_left_of_a_worker_that_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(f"import time; {_READY}time.sleep(600)", tmp_path, monkeypatch)
    assert list(tmp_path.iterdir()) == []
