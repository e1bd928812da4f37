"""Requests of many steps over a real broker: whatever ends or moves their worker, each is answered once."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.ops.kafka import KafkaBroker
from penstock.producer import Client
from penstock.producer.wire.codec import decode_reply
from penstock.producer.wire.headers import PARTIAL
from penstock.producer.wire.messages import ErrorReply
from penstock.producer.wire.topics import request_topic
from tests.engine.generation.helpers import expected, save_seq2seq, sources
from tests.integration.conftest import StartWorker, Unique, evict_members, reader_of

Ask = Callable[[KafkaBroker, str], Any]  # the fixtures `committed` and `count_records`

LONG: dict[str, Any] = {"max_new_tokens": 1000, "min_new_tokens": 1000}
# Sums of values. The first step of 778 is noted with the process, and a step of 777 is slow until a file exists.
SLOW_CELLS = """
import os, time
from pathlib import Path

from penstock.engine.cells.contract import Cell, CellSpec, StateSpec
from penstock.engine.cells.models.model import CellModel

SUM = StateSpec("sum", 1)
FOLDER = Path(os.environ["SLOW_CELLS"])


def step(states, inputs):
    if (inputs["value"] == 778).any():
        with (FOLDER / "began").open("a") as began:
            began.write(f"{os.getpid()}\\n")
    if (inputs["value"] == 777).any() and not (FOLDER / "release").exists():
        time.sleep(0.02)
    new = states["sum"] + inputs["value"][:, None]
    return {"sum": new}, {"sum": new}


def unfold(request, graph):
    graph.add("sum", value=[int(value) for value in request["values"]])


def sums():
    return CellModel.of([Cell(CellSpec("sum", (SUM,), ("value",), emits=(SUM,), max_rows=32), step)], unfold)
"""


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A random T5 and its directory."""
    directory = tmp_path_factory.mktemp("t5")
    return directory, save_seq2seq(directory, "t5-gated")


async def test_a_stream_of_an_exactly_once_worker_is_one_answer_and_those_behind_a_long_one_wait_for_it(
    kafka: KafkaBroker,
    unique: Unique,
    start_worker: StartWorker,
    committed: Ask,
    count_records: Ask,
    t5: tuple[Path, Any],
) -> None:
    directory, reference = t5
    model, replies = unique("t5"), unique("penstock.replies.")
    worker = start_worker(kafka, model=directory, served_name=model, delivery="exactly_once", partitions=1)
    (source,) = sources([6], seed=4)
    short: dict[str, Any] = {"max_new_tokens": 5}
    client = Client(
        bootstrap_servers=kafka.bootstrap_servers,
        model=model,
        reply_topic=replies,
        isolation_level="read_committed",
        timeout_s=300,
    )
    ended: list[str] = []
    await worker.ready()  # it creates the topic
    async with client:

        async def ask(name: str, **options: Any) -> list[Any]:
            rows = [row async for row in client.stream(ids=source, **options)]
            ended.append(name)
            return rows

        long = asyncio.create_task(ask("long", **LONG))
        while not await count_records(kafka, request_topic(model)):
            pass  # its record is the first of the partition
        (row,) = await ask("short", **short)
        (whole,) = await long
    assert list(row.tokens) == expected(reference, source, **short)
    assert (len(whole.tokens), whole.finish) == (1000, "length")
    assert ended == ["long", "short"]
    records = await read(kafka, replies, isolation_level="read_committed")
    assert [PARTIAL in dict(record.headers) for record in records] == [False, False]
    assert sum((await committed(kafka, f"penstock.{model}")).values()) == 2
    await worker.stop()


async def test_a_stream_goes_on_when_its_worker_is_killed_and_is_answered_once(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, committed: Ask, t5: tuple[Path, Any]
) -> None:
    """Sampling without a seed: the successor samples the same tokens."""
    directory, _ = t5
    model, replies = unique("t5"), unique("penstock.replies.")
    group = f"penstock.{model}"
    settings = {"model": directory, "served_name": model, "partitions": 1}
    worker = start_worker(kafka, **settings)
    (source,) = sources([6], seed=4)
    lengths: list[int] = []
    tokens: tuple[int, ...] = ()
    client = Client(bootstrap_servers=kafka.bootstrap_servers, model=model, reply_topic=replies, timeout_s=300)
    await worker.ready()
    async with client:
        async for row in client.stream(ids=source, do_sample=True, **LONG):
            if not lengths:
                worker.process.kill()
                await evict_members(kafka, group)
                assert sum((await committed(kafka, f"penstock.{model}")).values()) == 0
                successor = start_worker(kafka, **settings)
            assert row.tokens[: len(tokens)] == tokens
            tokens = row.tokens
            lengths.append(len(tokens))
    assert (row.finish, len(tokens)) == ("length", 1000)
    assert lengths == sorted(set(lengths))
    records = await read(kafka, replies)
    (answer,) = [record for record in records if PARTIAL not in dict(record.headers)]
    partial_keys = {record.key for record in records if PARTIAL in dict(record.headers)}
    assert len(partial_keys) == 1  # of both workers
    assert answer.key not in partial_keys
    await successor.stop()  # commits
    assert sum((await committed(kafka, f"penstock.{model}")).values()) == 1


async def test_a_rebalance_that_takes_the_partition_of_a_running_sequence_ends_it_and_frees_its_slot(
    kafka: KafkaBroker,
    unique: Unique,
    start_worker: StartWorker,
    committed: Ask,
    count_records: Ask,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each worker has one slot. The sequence takes minutes until it is released; the drain takes a second."""
    (tmp_path / "slow_cells.py").write_text(SLOW_CELLS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("SLOW_CELLS", str(tmp_path))
    model, replies = unique("slow"), unique("penstock.replies.")
    settings = {
        "model": model,
        "cells": "slow_cells:sums",
        "state_slots": 1,
        "device": "cpu",
        "partitions": 2,
        "drain_s": 1,
        "delivery": "exactly_once",
    }
    first = start_worker(kafka, **settings)
    client = Client(
        bootstrap_servers=kafka.bootstrap_servers,
        model=model,
        reply_topic=replies,
        isolation_level="read_committed",
        timeout_s=300,
        batch_calls=False,
    )
    values = [778, *[777] * 3000]
    await first.ready()
    async with client:
        slow = asyncio.create_task(client.sequence([{"values": values}]))
        await began(tmp_path, 1)
        second = start_worker(kafka, **settings)
        pids = await began(tmp_path, 2)  # by its new owner, or by the same one, whose only slot is free again
        assert pids[0] == str(first.process.pid)
        assert sum((await committed(kafka, f"penstock.{model}")).values()) == 0
        others = []
        for n in range(16):
            others.append(asyncio.create_task(client.sequence([{"values": [n, 1]}])))
            await asyncio.sleep(0.005)  # requests that follow one another at once share a partition
        await asyncio.wait(others, timeout=300, return_when=asyncio.FIRST_COMPLETED)  # of the worker with a free slot
        assert any(task.done() for task in others)
        assert not slow.done()
        (tmp_path / "release").touch()
        (row,) = await slow
        rows = await asyncio.gather(*others)
    np.testing.assert_array_equal(row["sum"][:, 0], np.cumsum(values))
    assert [other["sum"][-1, 0] for (other,) in rows] == [n + 1 for n in range(16)]
    for worker in (first, second):
        await worker.stop()
    assert len(await read(kafka, replies, isolation_level="read_committed")) == 17
    requests = await count_records(kafka, request_topic(model))
    assert sum((await committed(kafka, f"penstock.{model}")).values()) == requests == 17


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_a_request_that_its_sender_takes_back_frees_its_slot(
    kafka: KafkaBroker,
    unique: Unique,
    start_worker: StartWorker,
    committed: Ask,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    delivery: str,
) -> None:
    """The worker has one slot, and the first sequence is never released: it takes 80 s where it stays."""
    (tmp_path / "slow_cells.py").write_text(SLOW_CELLS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("SLOW_CELLS", str(tmp_path))
    model, replies = unique("slow"), unique("penstock.replies.")
    cells = {"cells": "slow_cells:sums", "state_slots": 1, "device": "cpu", "partitions": 1, "delivery": delivery}
    worker = start_worker(kafka, model=model, **cells)
    client = Client(bootstrap_servers=kafka.bootstrap_servers, model=model, reply_topic=replies, timeout_s=300)
    await worker.ready()
    async with client:
        slow = asyncio.create_task(client.sequence([{"values": [778, *[777] * 4000]}]))
        await began(tmp_path, 1)
        slow.cancel()
        (row,) = await client.sequence([{"values": [3, 4]}], timeout_s=40)  # half as long as the first takes
    assert row["sum"][:, 0].tolist() == [3, 7]
    await worker.stop()
    assert sum((await committed(kafka, f"penstock.{model}")).values()) == 3  # with the cancellation
    found = [decode_reply(record.value) for record in await read(kafka, replies, isolation_level="read_committed")]
    assert sorted([one.code if isinstance(one, ErrorReply) else "ok" for one in found]) == ["cancelled"] * 2 + ["ok"]


async def began(folder: Path, count: int) -> list[str]:
    """The processes in which the slow sequence has begun, once there are as many."""
    path = folder / "began"
    async with asyncio.timeout(300):
        while len(pids := path.read_text().split() if path.exists() else []) < count:  # noqa: ASYNC110  # a file has no event
            await asyncio.sleep(0.05)
    return pids


async def read(kafka: KafkaBroker, topic: str, isolation_level: str = "read_uncommitted") -> list[Any]:
    """All records of a topic."""
    consumer = reader_of(kafka, topic, isolation_level=isolation_level)
    records: list[Any] = []
    async with consumer:
        while some := await consumer.getmany(timeout_ms=1000):
            records += [record for batch in some.values() for record in batch]
    return records
