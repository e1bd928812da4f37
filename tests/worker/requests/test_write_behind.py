"""The write-behind cache keeps every result with a disk that keeps up, and a bounded part with one that does not."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from penstock.cache import ResponseCache
from penstock.worker.requests import write_behind
from penstock.worker.requests.write_behind import WriteBehindCache
from tests.worker.conftest import MakeSequences, sequence_maker


async def test_the_queue_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_behind, "_MAX_QUEUED_BYTES", 1000)
    async with await ResponseCache(":memory:", max_bytes=1 << 20, ttl_s=60, look_up_s=30.0).open() as cache:
        writer = WriteBehindCache(cache)
        for key in (b"first", b"second", b"too many"):  # all before a write can begin
            writer.put({key: bytes(600)})
        await writer.close()
        assert (await cache.get_many([b"first", b"second", b"too many"])).keys() == {b"first", b"second"}
        writer.put({b"too many": bytes(600)})  # the queue is written, so there is room
        await writer.close()
        assert await cache.get_many([b"too many"]) == {b"too many": bytes(600)}


async def test_the_bound_counts_what_an_entry_takes_beside_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_behind, "_MAX_QUEUED_BYTES", 1000)
    keys = [b"%032d" % number for number in range(20)]
    async with await ResponseCache(":memory:", max_bytes=1 << 20, ttl_s=60, look_up_s=30.0).open() as cache:
        writer = WriteBehindCache(cache)
        for key in keys:  # all before a write can begin
            writer.put({key: b"."})
        await writer.close()
        assert 1 <= len(await cache.get_many(keys)) <= 1 + 1000 / 150  # CPython's bytes and the dictionary's part


async def test_results_are_found_before_they_are_written_and_while_they_are(tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    async with await ResponseCache(path, max_bytes=1 << 20, ttl_s=60, lock_s=30.0, look_up_s=30.0).open() as cache:
        writer = WriteBehindCache(cache)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")  # no write ends meanwhile
            writer.put({b"being written": b"1"})
            await asyncio.sleep(0)
            writer.put({b"queued": b"2"})
            keys = [b"being written", b"queued", b"unknown"]
            assert await writer.get_many(keys) == {b"being written": b"1", b"queued": b"2"}
            other.execute("ROLLBACK")
        await writer.close()
        assert await writer.get_many(keys) == {b"being written": b"1", b"queued": b"2"}


async def test_a_look_up_tells_what_is_stored_from_what_is_not(make_sequences: MakeSequences) -> None:
    async with await ResponseCache(":memory:", max_bytes=1 << 20, ttl_s=60, look_up_s=30.0).open() as cache:
        writer, sequences = WriteBehindCache(cache), make_sequences([1], [2], [3])
        assert await writer.look_up(sequences) == ([], sequences)
        sequences[1].is_stored = False  # as sampled without a seed
        writer.put({sequences[1].keys[0]: bytes(8)})
        writer.store([(one, [np.full(2, one.token_ids[0], np.float32)]) for one in sequences[:2]])
        hits, misses = await writer.look_up(sequences)
        assert [(one, row.tolist()) for one, [row] in hits] == [(sequences[0], [1.0, 1.0])]
        assert (misses, sequences[0].request.num_cached) == (sequences[1:], 1)
        await writer.close()


async def test_a_sparse_vector_without_ids_is_a_result_also_once_it_is_written() -> None:
    async with await ResponseCache(":memory:", max_bytes=1 << 20, ttl_s=60, look_up_s=30.0).open() as cache:
        writer = WriteBehindCache(cache)
        [sequence] = sequence_maker()([1], task="embed_sparse")
        writer.store([(sequence, [np.empty(0, np.float32)])])
        for _ in range(2):
            [(hit, [row])], misses = await writer.look_up([sequence])
            assert (hit, row.shape, str(row.dtype), misses) == (sequence, (0,), "float32", [])
            await writer.close()


class SlowReader:
    """A cache whose file is read at once, and whose answer comes when the test says so."""

    def __init__(self) -> None:
        self.may_answer, self.may_store = asyncio.Event(), asyncio.Event()

    async def get_many(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        await self.may_answer.wait()
        return {}

    async def put_many(self, items: Mapping[bytes, bytes]) -> None:
        await self.may_store.wait()


@pytest.mark.parametrize("is_put_first", [True, False])
async def test_a_result_that_is_stored_behind_a_look_ups_back_is_found(is_put_first: bool) -> None:
    cache = SlowReader()
    writer = WriteBehindCache(cast(ResponseCache, cache))
    if is_put_first:
        writer.put({b"key": b"1"})
    looking = asyncio.create_task(writer.get_many([b"key"]))
    await asyncio.sleep(0)
    if not is_put_first:
        writer.put({b"key": b"1"})
    cache.may_store.set()
    await writer.close()
    cache.may_answer.set()
    assert await looking == {b"key": b"1"}
