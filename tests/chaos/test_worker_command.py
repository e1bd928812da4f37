"""Events in the worker's log are counted as it grows."""

from pathlib import Path

from penstock.ops.chaos.fleet.worker_command import WorkerCommand


def test_events_are_counted_once_and_when_their_lines_are_whole(tmp_path: Path) -> None:
    worker = WorkerCommand(tmp_path, 1, [])
    assert worker.num_events("a") == 0
    with worker.log_path.open("w", encoding="utf-8", buffering=1) as log:
        log.write('{"event": "a"}\n{"pid": 1, "event": "b"}\n{"event": ')
        log.flush()
        assert (worker.num_events("a"), worker.num_events("b")) == (1, 1)
        log.write('"a"}\n')
    assert (worker.num_events("a"), worker.num_events("b"), worker.num_events("c")) == (2, 1, 0)
