"""The response cache on real files: what it keeps, what it lets go, and how it fails."""

import asyncio
import fcntl
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import aiosqlite
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from penstock.cache import ResponseCache
from tests.examples import examples

ROW_OVERHEAD_BYTES = 104  # 100 a row and the checksum


class Clock:
    """Unix time, moved by hand."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def value(number: int, size: int = 400) -> bytes:
    return number.to_bytes(4, "big") * (size // 4)


def values(*numbers: int) -> dict[bytes, bytes]:
    return {key(number): value(number) for number in numbers}


async def open_cache(
    path: Path | str, max_bytes: int = 1 << 24, clock: Clock | None = None, lock_s: float = 30.0
) -> ResponseCache:
    """A cache that waits for a busy machine. Its pauses after failures pass when the clock is moved."""
    clock = clock or Clock()
    return await ResponseCache(
        path, max_bytes=max_bytes, ttl_s=100.0, look_up_s=30.0, lock_s=lock_s, clock=clock, monotonic=clock
    ).open()


async def test_what_is_put_is_found_by_this_and_the_next_process(tmp_path: Path) -> None:
    stored = values(*range(2000))
    async with await open_cache(tmp_path / "cache.db") as cache:
        await cache.put_many(stored)
        assert await cache.get_many([*stored, key(9999), key(1)]) == stored
        assert await cache.get_many([]) == {}
        assert (cache.stats.hits, cache.stats.misses, cache.stats.works) == (2000, 1, True)
    async with await open_cache(tmp_path / "cache.db") as cache:
        assert await cache.get_many(stored) == stored
        assert cache.stats.bytes == 2000 * (400 + ROW_OVERHEAD_BYTES)


async def test_an_answer_is_not_returned_once_its_time_has_passed() -> None:
    clock = Clock()
    async with await open_cache(":memory:", clock=clock) as cache:
        await cache.put_many(values(1))
        clock.now += 60
        await cache.put_many(values(2))
        assert await cache.get_many([key(1), key(2)]) == values(1, 2)
        clock.now += 40
        assert await cache.get_many([key(1), key(2)]) == values(2)
        await cache.put_many(values(1))
        assert await cache.get_many([key(1), key(2)]) == values(1, 2)


async def test_an_answer_of_the_future_has_expired_when_the_clock_is_set_back() -> None:
    clock = Clock()
    async with await open_cache(":memory:", clock=clock) as cache:
        clock.now += 3600
        await cache.put_many(values(1))
        clock.now -= 3600
        assert await cache.get_many([key(1)]) == {}
        await cache.put_many(values(1))
        assert await cache.get_many([key(1)]) == values(1)
        clock.now += 100
        assert await cache.get_many([key(1)]) == {}


async def test_rows_used_before_the_clock_was_set_back_leave_before_rows_used_after_it(tmp_path: Path) -> None:
    """Also in a process that never saw the later time."""
    clock = Clock()
    bound = 4 * (400 + ROW_OVERHEAD_BYTES)
    clock.now += 3600
    async with await open_cache(tmp_path / "cache.db", bound, clock) as cache:
        await cache.put_many(values(1, 2, 3, 4))
    clock.now -= 3600
    async with await open_cache(tmp_path / "cache.db", bound, clock) as cache:
        for number in (5, 6, 7):
            await cache.put_many(values(number))
        assert await cache.get_many([key(number) for number in range(8)]) == values(5, 6, 7)


async def test_the_least_recently_used_leave_first() -> None:
    async with await open_cache(":memory:", max_bytes=4 * (400 + ROW_OVERHEAD_BYTES)) as cache:
        for number in (1, 2, 3, 4):
            await cache.put_many(values(number))
        await cache.get_many([key(1)])
        await cache.put_many(values(5))
        assert await cache.get_many([key(number) for number in (1, 3, 4, 5)]) == values(1, 4, 5)


@pytest.mark.parametrize("max_bytes", [0, 1, 400 + ROW_OVERHEAD_BYTES - 1])
async def test_a_cache_too_small_for_any_value_keeps_none_and_works(max_bytes: int) -> None:
    async with await open_cache(":memory:", max_bytes) as cache:
        for _ in range(2):
            await cache.put_many(values(1, 2))
            assert await cache.get_many([key(1), key(2)]) == {}
        assert (cache.stats.bytes, cache.stats.works) == (0, True)


async def test_the_order_of_use_outlives_the_process(tmp_path: Path) -> None:
    clock = Clock()
    bound = 4 * (400 + ROW_OVERHEAD_BYTES)
    async with await open_cache(tmp_path / "cache.db", bound, clock) as cache:
        for number in (1, 2, 3, 4):
            await cache.put_many(values(number))
        await cache.get_many([key(1)])
        await cache.get_many([key(2)])
    clock.now += 1
    async with await open_cache(tmp_path / "cache.db", bound, clock) as cache:
        await cache.put_many(values(5))
        assert await cache.get_many([key(number) for number in range(6)]) == values(1, 2, 5)


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "get"]), st.integers(0, 9), st.sampled_from([4, 100, 400, 2000])), max_size=40
    ),
    st.integers(600, 6000),
)
def test_it_behaves_like_a_small_model_and_stays_within_its_bytes(
    steps: list[tuple[str, int, int]], max_bytes: int
) -> None:
    """A key that is put again has its new value and is counted once; one larger than the cache evicts nothing."""

    async def check() -> None:
        model: OrderedDict[bytes, bytes] = OrderedDict()
        async with await open_cache(":memory:", max_bytes) as cache:
            for step, number, size in steps:
                if step == "get":
                    found = await cache.get_many([key(number)])
                    assert found == {k: model[k] for k in [key(number)] if k in model}
                    if found:
                        model.move_to_end(key(number))
                else:
                    await cache.put_many({key(number): value(number, size)})
                    if size + ROW_OVERHEAD_BYTES <= max_bytes:
                        model[key(number)] = value(number, size)
                        model.move_to_end(key(number))
                        evict(model, max_bytes)
                    assert cache.stats.bytes == model_bytes(model) <= max_bytes
            assert await cache.get_many([key(number) for number in range(10)]) == model

    asyncio.run(check())


def model_bytes(model: OrderedDict[bytes, bytes]) -> int:
    return sum(len(stored) + ROW_OVERHEAD_BYTES for stored in model.values())


def evict(model: OrderedDict[bytes, bytes], max_bytes: int) -> None:
    if model_bytes(model) > max_bytes:
        while model_bytes(model) > int(max_bytes * 0.95):
            model.popitem(last=False)


async def test_the_file_stays_near_the_bound(tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    async with await open_cache(path, max_bytes=1 << 20) as cache:
        for start in range(0, 4096, 64):
            await cache.put_many({key(start + i): value(start + i, 1536) for i in range(64)})
    assert path.stat().st_size < 1.2 * (1 << 20)


async def test_reading_goes_on_while_others_write(tmp_path: Path) -> None:
    async with await open_cache(tmp_path / "cache.db") as cache:
        await cache.put_many(values(*range(50)))

        async def write(start: int) -> None:
            for number in range(start, start + 40):
                await cache.put_many(values(number))

        async def read() -> None:
            for _ in range(40):
                assert await cache.get_many([key(number) for number in range(50)]) == values(*range(50))

        await asyncio.gather(write(100), read(), write(200), read(), write(300))
        everything = [*range(50), *range(100, 140), *range(200, 240), *range(300, 340)]
        assert await cache.get_many([key(number) for number in range(400)]) == values(*everything)
        assert cache.stats.works


async def test_a_cancelled_write_leaves_the_cache_usable(tmp_path: Path) -> None:
    async with await open_cache(tmp_path / "cache.db") as cache:
        for steps in range(8):
            write = asyncio.create_task(cache.put_many(values(*range(100))))
            for _ in range(steps):
                await asyncio.sleep(0)
            write.cancel()
            await asyncio.gather(write, return_exceptions=True)
        await cache.put_many(values(1, 2))
        assert await cache.get_many([key(1), key(2)]) == values(1, 2)
        assert cache.stats.works


def whole_bytes(path: Path) -> int:
    """The bytes that a file counts. It is whole, and these are those of its rows."""
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        [(counted, total)] = db.execute(
            "SELECT bytes, (SELECT sum(length(sealed) + 100) FROM response) FROM response_size"
        )
    db.close()
    assert counted == total
    return int(counted)


async def test_two_workers_share_a_file(tmp_path: Path) -> None:
    clock = Clock()
    path = tmp_path / "cache.db"
    bound = 60 * (400 + ROW_OVERHEAD_BYTES)
    first, second = await asyncio.gather(open_cache(path, bound, clock), open_cache(path, bound, clock))

    async def fill(cache: ResponseCache, start: int) -> None:
        for number in range(start, start + 100):
            await cache.put_many(values(number))
            await cache.get_many([key(other) for other in range(number, number + 5)])

    await asyncio.gather(fill(first, 0), fill(second, 50))
    clock.now += 1  # above the ids of the uses by either process
    await first.put_many(values(1000))
    assert await second.get_many([key(1000)]) == values(1000)
    assert first.stats.works
    assert second.stats.works
    await first.close()
    await second.close()
    assert 0 < whole_bytes(path) <= bound


async def test_members_that_start_at_the_same_time_without_a_file_all_write(tmp_path: Path) -> None:
    for turn in range(20):
        directory = tmp_path / str(turn)
        directory.mkdir()
        caches = await asyncio.gather(*(open_cache(directory / "cache.db") for _ in range(6)))
        all_write = all([cache.stats.works for cache in caches])
        await asyncio.gather(*(cache.close() for cache in caches))
        assert all_write


async def assert_unavailable(cache: ResponseCache, logs: Sequence[Mapping[str, object]]) -> None:
    """Look-ups find nothing, writes do nothing, one warning was logged, and nothing raises."""
    await cache.put_many(values(*range(64)))
    assert await cache.get_many([key(number) for number in range(64)]) == {}
    await cache.put_many(values(1))
    await cache.close()
    assert not cache.stats.works
    warnings = [entry for entry in logs if entry["event"] == "cache_unavailable"]
    assert len(warnings) == 1
    assert warnings[0]["log_level"] == "warning"
    assert warnings[0]["reason"]


async def test_a_file_of_something_else_makes_the_cache_unavailable_and_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(b"not a database, " * 1000)
    with capture_logs() as logs:
        await assert_unavailable(await open_cache(path), logs)
    assert path.read_bytes() == b"not a database, " * 1000


@pytest.mark.parametrize("path", ["missing/cache.db", "file/cache.db", "", "other.db", "fifo", "link.db"])
async def test_a_path_where_no_cache_can_be_makes_the_cache_unavailable(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with sqlite3.connect(tmp_path / "other.db") as db:
        db.execute("CREATE TABLE response (who TEXT)")
    db.close()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link.db").symlink_to(tmp_path / "nothing.db")
    with capture_logs() as logs:
        await assert_unavailable(await open_cache(tmp_path / path), logs)
    assert not (tmp_path / "nothing.db").exists()


@contextmanager
def only_reading(directory: Path, directory_mode: int = 0o555) -> Iterator[None]:
    """Nothing in the directory may be written, by root neither: root steps down meanwhile."""
    for path in directory.iterdir():
        path.chmod(0o555)
    directory.chmod(directory_mode)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        directory.chmod(0o755)


@pytest.mark.parametrize("exists", [True, False])
async def test_a_directory_that_may_only_be_read_makes_the_cache_unavailable(exists: bool) -> None:
    with tempfile.TemporaryDirectory() as name:  # tmp_path lies where root alone may look
        path = Path(name) / "cache.db"
        if exists:
            async with await open_cache(path) as cache:
                await cache.put_many(values(1))
        with only_reading(path.parent), capture_logs() as logs:
            await assert_unavailable(await open_cache(path), logs)
        assert path.exists() == exists
        assert ("readonly" in str(logs[0]["reason"])) == exists


@pytest.mark.parametrize("directory_mode", [0o555, 0o777], ids=["the directory", "the file alone"])
async def test_a_cache_that_may_be_written_again_is_used_again(directory_mode: int) -> None:
    clock = Clock()
    with tempfile.TemporaryDirectory() as name, capture_logs() as logs:
        path = Path(name) / "cache.db"
        async with await open_cache(path, clock=clock) as cache:
            await cache.put_many(values(1))
        with only_reading(path.parent, directory_mode):
            cache = await open_cache(path, clock=clock)
            for number in range(3):
                await cache.put_many(values(number))
                clock.now += 64.0
            assert not cache.stats.works
        path.chmod(0o644)
        await cache.put_many(values(1, 2))
        assert await cache.get_many([key(1), key(2)]) == values(1, 2)
        assert cache.stats.works
        await cache.close()
    assert [entry["event"] for entry in logs] == ["cache_unavailable", "cache_recovered"]


def remove(directory: Path, pattern: str) -> list[Path]:
    """Remove the files that match. Returns them."""
    found = list(directory.glob(pattern))
    for file in found:
        file.unlink()
    return found


@pytest.mark.parametrize("removed", ["", "*"], ids=["the file alone", "with its log and index"])
async def test_members_whose_file_is_removed_share_a_new_one(tmp_path: Path, removed: str) -> None:
    path, clock = tmp_path / "cache.db", Clock()
    members = [await open_cache(path, clock=clock) for _ in range(3)]
    with capture_logs() as logs:
        for number, member in enumerate(members):
            await member.put_many(values(number))
            assert await member.get_many(map(key, range(number + 1))) == values(*range(number + 1))
        remove(tmp_path, f"cache.db{removed}")
        clock.now += 1.0
        for number, member in enumerate(members, 10):
            await member.put_many(values(number))
        for number, member in enumerate(members, 20):
            assert await member.get_many(map(key, range(30))) == values(10, 11, 12, *range(20, number))
            await member.put_many(values(number))
        for member in members:
            await member.close()
    assert logs == []
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert db.execute("SELECT count(*) FROM response").fetchall() == [(6,)]
    db.close()
    assert remove(tmp_path, "*") == [path]


async def test_a_member_that_ends_leaves_a_file_alone_that_took_the_place_of_its_own(tmp_path: Path) -> None:
    path, clock = tmp_path / "cache.db", Clock()
    first, second = await open_cache(path, clock=clock), await open_cache(path, clock=clock)
    for member in (first, second):
        await member.put_many(values(1))
        await member.get_many([key(1)])
    remove(tmp_path, "*")
    clock.now += 1.0
    await first.put_many(values(2))
    await second.close()
    async with await open_cache(path, clock=clock) as third:
        assert await third.get_many(map(key, range(4))) == values(2)
        await third.put_many(values(3))
        assert await first.get_many(map(key, range(4))) == values(2, 3)
    await first.close()


async def test_a_lock_of_another_process_stops_writes_until_it_is_gone(tmp_path: Path) -> None:
    path, clock = tmp_path / "cache.db", Clock()
    async with await open_cache(path, clock=clock, lock_s=0.05) as cache, aiosqlite.connect(path) as other:
        await cache.put_many(values(1))
        await other.execute("BEGIN IMMEDIATE")
        with capture_logs() as logs:
            await cache.put_many(values(2))
            assert not cache.stats.works
            assert await cache.get_many([key(1), key(2)]) == values(1)  # look-ups do not need the lock
            await other.rollback()
            await cache.put_many(values(3))  # within the pause: not tried
            clock.now += 1.0
            await cache.put_many(values(4))
            assert cache.stats.works
        assert [entry["event"] for entry in logs] == ["cache_unavailable", "cache_recovered"]
        assert await cache.get_many(map(key, range(5))) == values(1, 4)


async def test_a_look_up_that_takes_too_long_finds_nothing_and_holds_up_no_other(tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    async with await open_cache(path) as cache:
        await cache.put_many(values(1))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    cache = ResponseCache(path, max_bytes=1 << 20, ttl_s=1e9, look_up_s=0.001, lock_s=600.0)
    assert await cache.get_many([key(1)]) == {}
    assert cache.stats.works  # SQLite is still waiting for the lock: nothing has failed
    assert await cache.get_many([key(1)]) == {}
    assert cache.stats.works
    other.close()
    await cache.close()


async def test_a_write_evicts_a_bounded_number_of_rows(tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    async with await open_cache(path) as cache:
        await cache.put_many(values(*range(1000)))
    bound = 100 * (400 + ROW_OVERHEAD_BYTES)
    sizes = []
    async with await open_cache(path, bound) as cache:
        for number in range(1000, 1006):
            await cache.put_many(values(number))
            sizes.append(cache.stats.bytes // (400 + ROW_OVERHEAD_BYTES))
        assert sizes == [1000 + 1 - 258, 744 - 258, 487 - 258, 95, 96, 97]
        assert await cache.get_many([key(999), key(0)]) == values(999)


async def test_the_hit_rate_is_that_of_an_ideal_lru() -> None:
    """Zipf(1.0) over 10,000 texts, a cache of a tenth of them."""
    num_texts, capacity = 10_000, 1000
    weights = 1 / np.arange(1, num_texts + 1)
    draws = np.random.default_rng(7).choice(num_texts, size=30_000, p=weights / weights.sum()).tolist()
    ideal: OrderedDict[int, None] = OrderedDict()
    hits = ideal_hits = 0
    async with await open_cache(":memory:", capacity * (400 + ROW_OVERHEAD_BYTES)) as cache:
        for start in range(0, len(draws), 50):
            numbers = draws[start : start + 50]
            found = await cache.get_many(map(key, numbers))
            await cache.put_many(values(*[number for number in numbers if key(number) not in found]))
            hits += sum([key(number) in found for number in numbers])
            for number in numbers:
                ideal_hits += number in ideal
                ideal[number] = None
                ideal.move_to_end(number)
                if len(ideal) > capacity:
                    ideal.popitem(last=False)
    assert hits / len(draws) >= ideal_hits / len(draws) - 0.02


_WRITE_FOREVER = """
import asyncio, sys
from penstock.cache import ResponseCache

async def main():
    cache = await ResponseCache(sys.argv[1], max_bytes=1 << 22, ttl_s=1e9).open()
    number = 0
    while True:
        number += 1
        keys = [n.to_bytes(32, "big") for n in range(number * 8, number * 8 + 8)]
        await cache.put_many({key: key * 8 for key in keys})
        await cache.get_many(keys)
        print(number, flush=True)

asyncio.run(main())
"""


def write_until_killed(path: Path, num_writes: int) -> None:
    with subprocess.Popen([sys.executable, "-c", _WRITE_FOREVER, path], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(num_writes):
            assert process.stdout.readline()
        process.kill()


@pytest.mark.slow
async def test_a_process_that_is_killed_leaves_a_file_that_works(tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    for _ in range(3):
        await asyncio.to_thread(write_until_killed, path, 40)
        with capture_logs() as logs:
            async with await ResponseCache(path, max_bytes=1 << 22, ttl_s=1e9, look_up_s=30.0).open() as cache:
                found = await cache.get_many(map(key, range(8, 328)))
                assert found == {key(number): key(number) * 8 for number in range(8, 328)}
                await cache.put_many(values(1))
        assert logs == []


@pytest.mark.slow
@settings(max_examples=examples(25))
@given(st.data())
def test_a_log_that_a_crash_has_cut_or_garbled_gives_no_wrong_answer(data: st.DataObject) -> None:
    """The log of a process that was killed, as a machine that lost power may leave it."""
    stored = values(*range(100))

    async def check(name: str) -> None:
        path, crashed = Path(name) / "cache.db", Path(name) / "crashed.db"
        async with await open_cache(path) as cache:
            for number in range(0, 100, 10):
                await cache.put_many(values(*range(number, number + 10)))
            crashed.write_bytes(path.read_bytes())
            log = bytearray((Path(name) / "cache.db-wal").read_bytes())
        assert len(log) > 100_000
        del log[data.draw(st.integers(0, len(log)), label="length") :]
        for _ in range(data.draw(st.integers(0, 2), label="faults") if log else 0):
            at = data.draw(st.integers(0, len(log) - 1), label="at")
            garbage = data.draw(st.binary(min_size=1, max_size=64), label="garbage")[: len(log) - at]
            log[at : at + len(garbage)] = garbage
        (Path(name) / "crashed.db-wal").write_bytes(log)
        async with await open_cache(crashed) as cache:
            assert (await cache.get_many(stored)).items() <= stored.items()
            await cache.put_many(values(200))
            assert await cache.get_many([key(200)]) == values(200)
            assert cache.stats.works

    with tempfile.TemporaryDirectory() as name:
        asyncio.run(check(name))


_WRITE_AND_EVICT = """
import asyncio, sys
from penstock.cache import ResponseCache

async def main():
    path, first = sys.argv[1], int(sys.argv[2])
    cache = await ResponseCache(path, max_bytes=100_000, ttl_s=1e9, look_up_s=30.0, lock_s=30.0).open()
    for start in range(first, first + 1200, 60):
        keys = [n.to_bytes(32, "big") for n in range(start, start + 60)]
        await cache.put_many({key: key * 8 for key in keys})
        found = await cache.get_many([n.to_bytes(32, "big") for n in range(max(0, start - 200), start + 60)])
        assert all(value == key * 8 for key, value in found.items())
    assert cache.stats.works
    await cache.close()

asyncio.run(main())
"""


@pytest.mark.slow
async def test_processes_that_write_and_evict_at_once_keep_the_file_whole_and_within_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    members = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", _WRITE_AND_EVICT, path, str(first), stdout=subprocess.PIPE
        )
        for first in (0, 600, 5000)
    ]
    printed = [(await member.communicate())[0] for member in members]
    assert [(member.returncode, out) for member, out in zip(members, printed, strict=True)] == [(0, b"")] * 3
    assert 50_000 < whole_bytes(path) <= 100_000


@contextmanager
def largest_file(max_bytes: int) -> Iterator[None]:
    """No file of this process grows beyond the bound: a write fails as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_full_disk_stops_writes_until_there_is_room(tmp_path: Path) -> None:
    clock = Clock()
    async with await open_cache(tmp_path / "cache.db", clock=clock) as cache:
        await cache.put_many(values(1, 2, 3))
        with capture_logs() as logs:
            with largest_file(200_000):
                await cache.put_many(values(*range(10, 5000)))
                assert not cache.stats.works
                clock.now += 1.0
                await cache.put_many(values(*range(10, 5000)))
                assert await cache.get_many(map(key, range(5000))) == values(1, 2, 3)
            clock.now += 2.0
            await cache.put_many(values(4))
        assert [entry["event"] for entry in logs] == ["cache_unavailable", "cache_recovered"]
        assert await cache.get_many(map(key, range(5000))) == values(1, 2, 3, 4)


@pytest.mark.slow
@settings(max_examples=examples(30))
@given(st.data())
def test_a_damaged_file_never_gives_a_wrong_answer(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        damage_and_look(Path(name) / "cache.db", data)


def damage_and_look(path: Path, data: st.DataObject) -> None:
    stored = values(*range(100))

    async def fill() -> None:
        async with await open_cache(path) as cache:
            await cache.put_many(stored)

    async def look() -> None:
        async with await open_cache(path) as cache:
            found = await cache.get_many(stored)
            assert found.items() <= stored.items()
            await cache.put_many(values(200))
            assert (await cache.get_many([*stored, key(200)])).items() <= (stored | values(200)).items()

    asyncio.run(fill())
    size = path.stat().st_size
    with path.open("r+b") as file:
        for _ in range(data.draw(st.integers(1, 4))):
            file.seek(data.draw(st.integers(0, size - 1)))
            file.write(data.draw(st.binary(min_size=1, max_size=64)))
    asyncio.run(look())


def damage(path: Path, *, from_page: int) -> None:
    with path.open("r+b") as file:
        file.seek(from_page * 8192)
        file.write(b"\xff" * 8192 * 20)


async def test_members_whose_file_is_damaged_share_a_new_one(tmp_path: Path) -> None:
    path, clock = tmp_path / "cache.db", Clock()
    async with await open_cache(path, clock=clock) as first, await open_cache(path, clock=clock) as second:
        await first.put_many(values(*range(1000)))
    with capture_logs() as logs:
        async with await open_cache(path, clock=clock) as first, await open_cache(path, clock=clock) as second:
            damage(path, from_page=2)
            for cache in (first, second):
                await cache.get_many(map(key, range(1000)))
                assert not cache.stats.works
            for _ in range(3):
                clock.now += 2.0
                await first.put_many(values(1))
                await second.put_many(values(2))
            for cache in (first, second):
                assert await cache.get_many(map(key, range(1000))) == values(1, 2)
                assert cache.stats.works
    events = [entry["event"] for entry in logs]
    assert events.count("cache_unavailable") == events.count("cache_recovered") == 2
    assert "cache_file_removed" in events


@pytest.mark.parametrize("from_page", [0, 2])
async def test_a_file_damaged_before_a_worker_starts_is_made_anew_where_it_can_be_told(
    tmp_path: Path, from_page: int
) -> None:
    path, clock = tmp_path / "cache.db", Clock()
    async with await open_cache(path) as cache:
        await cache.put_many(values(*range(1000)))
    damage(path, from_page=from_page)
    async with await open_cache(path, clock=clock) as cache:
        await cache.get_many(map(key, range(1000)))
        clock.now += 64.0
        await cache.put_many(values(1))
        clock.now += 64.0
        await cache.put_many(values(1))
        assert await cache.get_many([key(1), key(2)]) == ({} if from_page == 0 else values(1))


async def test_a_file_whose_first_page_is_damaged_in_use_is_made_anew(tmp_path: Path) -> None:
    path, clock = tmp_path / "cache.db", Clock()
    async with await open_cache(path, clock=clock) as cache:
        await cache.put_many(values(*range(1000)))
        cache._writer._db, db = None, cache._writer._db
        assert db is not None
        await db.close()  # as after a failure
        damage(path, from_page=0)
        for _ in range(3):
            clock.now += 64.0
            await cache.put_many(values(1))
        assert await cache.get_many([key(1), key(2)]) == values(1)


async def test_a_damaged_value_is_a_miss_and_is_mended_by_the_next_write(tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    async with await open_cache(path) as cache:
        await cache.put_many(values(1, 2))
    content = path.read_bytes()
    at = content.index(value(1))
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), b"\xff", at + 17)
    async with await open_cache(path) as cache:
        assert await cache.get_many([key(1), key(2)]) == values(2)
        await cache.put_many(values(1))
        assert await cache.get_many([key(1), key(2)]) == values(1, 2)


async def test_a_value_under_another_key_is_a_miss(tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    async with await open_cache(path) as cache:
        await cache.put_many(values(1, 2))
    with sqlite3.connect(path) as db:
        db.execute("UPDATE response SET sealed = (SELECT sealed FROM response WHERE key = ?)", (key(1),))
    db.close()
    async with await open_cache(path) as cache:
        assert await cache.get_many([key(1), key(2)]) == values(1)


async def test_after_close_it_finds_nothing_and_says_nothing() -> None:
    cache = await open_cache(":memory:")
    await cache.put_many(values(1))
    await cache.close()
    with capture_logs() as logs:
        assert await cache.get_many([key(1)]) == {}
        await cache.put_many(values(1))
        await cache.close()
    assert logs == []


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """As by `flock PATH` of anybody who may read it."""
    file = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


async def test_a_locked_directory_delays_no_start_fails_no_write_and_is_tried_again(tmp_path: Path) -> None:
    clock = Clock()
    with capture_logs() as logs:
        with locked(tmp_path):
            cache = await open_cache(tmp_path / "cache.db", clock=clock, lock_s=0.5)
            await assert_finds_nothing(cache)
            clock.now += 1.0
            await assert_finds_nothing(cache)
        clock.now += 2.0
        await cache.put_many(values(1))
        assert await cache.get_many([key(1)]) == values(1)
        await cache.close()
    assert [entry["event"] for entry in logs] == ["cache_unavailable", "cache_recovered"]


async def assert_finds_nothing(cache: ResponseCache) -> None:
    await cache.put_many(values(1))
    assert await cache.get_many([key(1)]) == {}
    assert not cache.stats.works


async def test_a_directory_that_is_locked_while_its_file_is_gone_fails_no_end(tmp_path: Path) -> None:
    path, clock = tmp_path / "cache.db", Clock()
    with capture_logs() as logs:
        cache = await open_cache(path, clock=clock, lock_s=0.5)
        await cache.put_many(values(1))
        await cache.get_many([key(1)])
        remove(tmp_path, "*")
        clock.now += 1.0
        with locked(tmp_path):
            await cache.put_many(values(2))
            await cache.close()
    assert [entry["event"] for entry in logs] == ["cache_unavailable"]


async def test_a_locked_file_holds_up_nothing(tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    path.touch()
    with locked(path):
        async with await open_cache(path) as cache:
            await cache.put_many(values(1))
            assert await cache.get_many([key(1)]) == values(1)


async def test_an_exclusive_lock_of_another_program_holds_up_no_start(tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("CREATE TABLE taken (x)")
        other.execute("BEGIN EXCLUSIVE")
        cache = ResponseCache(path, max_bytes=1 << 20, ttl_s=100.0, look_up_s=0.0, lock_s=0.2)
        with capture_logs() as logs:
            await cache.open()
            assert logs == []  # it is still being opened
            assert await cache.get_many([key(1)]) == {}
            await cache.close()
        assert [entry["event"] for entry in logs] == ["cache_unavailable"]
    other.close()


def modes_in(directory: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mode & 0o777 for file in directory.iterdir()}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
async def test_its_files_are_its_owners_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        async with await open_cache(tmp_path / "cache.db") as cache:
            await cache.put_many(values(1))
            await cache.get_many([key(1)])
            modes = modes_in(tmp_path)
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(["cache.db", "cache.db-wal", "cache.db-shm"], 0o600)


async def test_a_link_to_a_cache_is_one(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "cache.db")
    async with await open_cache(tmp_path / "cache.db") as cache:
        await cache.put_many(values(1))
    async with await open_cache(tmp_path / "link.db") as cache:
        assert await cache.get_many([key(1)]) == values(1)
