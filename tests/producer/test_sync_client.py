"""The client for scripts, notebooks and threads. What it sends goes to a function, whose replies come back."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from penstock import EmptyInput, PenstockError, ShuttingDown, SyncClient, WrongArgument, WrongLoop
from penstock.producer.wire.messages import Generation, Reply, Request
from tests.producer.helpers import Answer, Loop, first_ids, stand_in


@contextmanager
def connected(monkeypatch: pytest.MonkeyPatch, answer: Answer, **settings: Any) -> Iterator[tuple[SyncClient, Loop]]:
    client = SyncClient(model="m", bootstrap_servers="nowhere:1", **settings)
    loop = stand_in(monkeypatch, client._client, answer)
    with client:
        yield client, loop


def test_threads_share_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(monkeypatch, first_ids) as (client, _), ThreadPoolExecutor(16) as threads:
        vectors = list(threads.map(lambda number: client.embed(ids=[[number]]), range(400)))
    assert [int(vector[0, 0]) for vector in vectors] == list(range(400))


async def test_it_works_where_a_loop_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(monkeypatch, first_ids) as (client, _):
        assert client.embed(ids=[[5]]).tolist() == [[5, 1, 0]]


def test_the_first_call_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    client = SyncClient(model="m", bootstrap_servers="nowhere:1")
    stand_in(monkeypatch, client._client, first_ids)
    with ThreadPoolExecutor(8) as threads:
        assert len(list(threads.map(lambda number: client.embed(ids=[[number]]), range(8)))) == 8
    client.close()


def test_an_error_is_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(monkeypatch, first_ids) as (client, _):
        with pytest.raises(EmptyInput):
            client.embed([])
        with pytest.raises(WrongArgument, match="`texts` must be a list"):
            client.embed({"text": "a"})  # type: ignore[arg-type]
        rows = client.map("embed", ids=[[1], []])
    assert [type(row) for row in rows] == [np.ndarray, EmptyInput]


def answer_texts(request: Request) -> Reply:
    return Reply("m", "r", vectors=np.array([[float(text)] for text in request.text or ()], np.float32))  # type: ignore[arg-type]  # no pairs


def test_rows_are_read_on_the_callers_thread_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an iterator of a database needs it."""
    threads, num_read, ahead = set(), 0, 0

    def rows() -> Iterator[str]:
        nonlocal num_read
        for number in range(40_000):
            threads.add(threading.get_ident())
            num_read += 1
            yield str(number)

    with connected(monkeypatch, answer_texts) as (client, _):
        for number, (row, vector) in enumerate(client.map_rows("embed", rows())):
            ahead = max(ahead, num_read - number)
            assert row == str(number)
            assert isinstance(vector, np.ndarray)
            assert vector[0] == number
    assert num_read == 40_000
    assert ahead <= 16_384 + 2 * 512
    assert threads == {threading.get_ident()}


def test_rows_that_are_given_up_or_that_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Iterator[str]:
        yield "1"
        raise OSError("the source is gone")

    async def endless() -> Any:
        yield "1"

    with connected(monkeypatch, answer_texts) as (client, _):
        for row, _ in client.map_rows("embed", map(str, range(100_000))):
            if row == "3":
                break
        with pytest.raises(OSError, match="the source is gone"):
            list(client.map_rows("embed", broken()))
        with pytest.raises(WrongArgument, match="use Client"):
            next(client.map_rows("embed", endless()))
        assert len(list(client.map_rows("embed", ["1", "2"]))) == 2


def test_a_stream_is_an_iterator(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: Request) -> Reply:
        return Reply("m", "r", generations=(Generation((7, 8), "stop", "done"),))

    with connected(monkeypatch, answer) as (client, _):
        assert [so_far.text for so_far in client.stream("a", num_beams=1)] == ["done"]


def test_close_fails_the_calls_of_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(monkeypatch, lambda request: None) as (client, loop), ThreadPoolExecutor(5) as threads:
        calls = [threads.submit(client.embed, f"text {number}") for number in range(4)]
        rows = threads.submit(lambda: list(client.map_rows("embed", ["1"])))
        client._thread.run(loop.until_waiting(1))
        client.close()
        client.close()
        assert all(isinstance(call.exception(60), ShuttingDown) for call in calls)
        assert isinstance(rows.exception(60), ShuttingDown) or isinstance(rows.result()[0][1], ShuttingDown)
        with pytest.raises(ShuttingDown, match="The client is closed"):
            client.embed("x")
    assert not client._thread._thread.is_alive()


def test_its_own_callback_may_not_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[Exception] = []

    def on_reply(reply: Reply, num_rows: int) -> None:
        try:
            client.embed(ids=[[1]])
        except PenstockError as error:
            errors.append(error)

    with connected(monkeypatch, first_ids, on_reply=on_reply) as (client, _):
        client.embed(ids=[[1]])
    assert [type(error) for error in errors] == [WrongLoop]


def test_a_fork_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(monkeypatch, first_ids) as (client, _):
        monkeypatch.setattr(os, "getpid", lambda: 1)  # what a child sees
        with pytest.raises(WrongLoop, match="after a fork"):
            client.embed(ids=[[1]])
        monkeypatch.undo()


SCRIPT = """
import threading
from penstock import SyncClient
from penstock.ops.kafka import MockBroker

broker = MockBroker()
broker.__enter__()
client = SyncClient(bootstrap_servers=broker.bootstrap_servers, model="m", fetch_max_wait_ms=5)
client.start()
threading.Thread(target=lambda: client.embed("never answered"), daemon=True).start()
{end}
"""


@pytest.mark.slow
@pytest.mark.parametrize(("end", "code"), [("", 0), ("raise SystemExit(7)", 7), ("del client", 0)])
def test_an_interpreter_ends_without_close(end: str, code: int) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(end=end)], capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr
    assert "Task was destroyed" not in done.stderr


async def test_what_is_left_on_the_loop_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(monkeypatch, first_ids) as (client, _):
        left = client._thread.begin(asyncio.sleep(3600))
    assert left.cancelled()
