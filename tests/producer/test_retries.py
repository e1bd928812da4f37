"""Bounds on the records that one call sends, whatever is answered: overload and expiry never multiply the load."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.producer import BadTokenId, Expired, InvalidRequest, Overloaded, PenstockError, ShuttingDown
from penstock.producer.transport import exchange as module
from penstock.producer.wire.headers import DEADLINE_MS
from penstock.producer.wire.messages import Reply, Request
from tests.examples import examples
from tests.producer.helpers import Pauses, connected, first_ids, within

MOST_SENDS = 4  # of a record that is answered with `overloaded`
TIMEOUT_S = 3600.0

# What a worker answers: a kind, and a number that chooses the rows that it names.
Step = tuple[str, int]
KINDS = ("ok", "overloaded", "overloaded row", "overloaded and bad row", "expired", "expired row", "silence")
BAD = ("bad row", "too large")
STEP = st.tuples(st.sampled_from(KINDS + BAD), st.integers(0, 1000))
OVERLOAD = ("overloaded", "overloaded row", "overloaded and bad row")


@pytest.mark.parametrize(
    "rows", [{}, {0: Overloaded("this row")}, {63: Overloaded("this row"), 64: Overloaded("no row")}]
)
@pytest.mark.parametrize("num_calls", [1, 64])
async def test_a_record_refused_for_overload_is_sent_four_times_whatever_rows_are_named(
    monkeypatch: pytest.MonkeyPatch, rows: dict[int, PenstockError], num_calls: int
) -> None:
    async with connected(monkeypatch, lambda request: Overloaded("later", rows)) as (client, loop):
        Pauses(monkeypatch, client)
        size = 64 // num_calls
        calls = [client.map("embed", ids=[[n, k] for n in range(size)], timeout_s=60) for k in range(num_calls)]
        results = [row for call in await within(300, asyncio.gather(*calls)) for row in call]
    assert [request.num_sequences for request in loop.requests] == [64] * MOST_SENDS
    assert [type(result) for result in results] == [Overloaded] * 64
    assert {str(result) for result in results} == {"later"}
    assert not any(result.rows for result in results)  # they are rows of the record, not of the call
    assert len(set(map(id, results))) == 64  # raised by different callers


@pytest.mark.parametrize("error", [Expired("late"), Expired("late", {5: Expired("this row")})], ids=["whole", "row"])
async def test_an_expired_record_is_not_sent_again(monkeypatch: pytest.MonkeyPatch, error: PenstockError) -> None:
    async with connected(monkeypatch, lambda request: error) as (client, loop):
        results = await within(300, client.map("embed", ids=[[n] for n in range(64)]))
    assert [type(result) for result in results] == [Expired] * 64
    assert len(loop.requests) == 1


async def test_nothing_is_sent_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: Request) -> Reply | PenstockError:
        pauses.seconds.append(61)  # a slow worker
        return BadTokenId("bad", {0: BadTokenId("this row")})

    async with connected(monkeypatch, answer) as (client, loop):
        pauses = Pauses(monkeypatch, client)
        results = await within(300, client.map("embed", ids=[[1], [2]], timeout_s=60))
    assert [type(result) for result in results] == [BadTokenId, Expired]
    assert len(loop.requests) == 1


async def test_a_record_in_parts_has_one_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: Request) -> PenstockError:
        return InvalidRequest("too large") if request.num_sequences > 16 else Overloaded("later")

    async with connected(monkeypatch, answer) as (client, loop):
        Pauses(monkeypatch, client)
        results = await within(300, client.map("embed", ids=[[n] for n in range(64)], timeout_s=60))
    assert [type(result) for result in results] == [Overloaded] * 64
    assert [request.num_sequences for request in loop.requests] == [64, 32, *[16] * MOST_SENDS]


async def test_a_bulk_record_is_sent_ten_times_a_minute_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    class Least(random.Random):
        def uniform(self, a: float, b: float) -> float:
            return a

    monkeypatch.setattr(module, "random", Least())
    async with connected(monkeypatch, lambda request: Overloaded("later", {0: Overloaded("")}), bulk=True) as (
        client,
        loop,
    ):
        pauses = Pauses(monkeypatch, client)
        results = await within(300, client.map("embed", ids=[[n] for n in range(64)], timeout_s=TIMEOUT_S))
    assert [type(result) for result in results] == [Overloaded] * 64
    assert sum(pauses.seconds) <= TIMEOUT_S
    assert len(loop.requests) <= 9 + TIMEOUT_S / 6


class Script:
    """A worker that answers by a list of steps, then rightly. Counts its answers by kind."""

    def __init__(self, steps: list[Step]) -> None:
        self.counts: Counter[str] = Counter()
        self.silent = False
        self._steps: Iterator[Step] = iter(steps)

    def __call__(self, request: Request) -> Reply | PenstockError | None:
        kind, choice = next(self._steps, ("ok", 0))
        n = request.num_sequences
        if kind == "too large" and n == 1:
            kind = "ok"
        self.counts[kind] += 1
        row = choice % n
        match kind:
            case "ok":
                return first_ids(request)
            case "overloaded":
                return Overloaded("later")
            case "overloaded row":
                return Overloaded("later", {row: Overloaded("this row")})
            case "overloaded and bad row":
                return Overloaded("later", {row: BadTokenId("this row"), (row + 1) % n: Overloaded("that row")})
            case "expired":
                return Expired("late")
            case "expired row":
                return Expired("late", {row: Expired("this row")})
            case "bad row":
                return BadTokenId("bad", {(row + 1) % n: Overloaded("that row"), row: BadTokenId("this row")})
            case "too large":
                return InvalidRequest("send fewer")
        self.silent = True
        return None


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(st.lists(STEP, max_size=40), st.integers(1, 64), st.booleans())
def test_any_answers_cause_a_bounded_number_of_records(steps: list[Step], num_sequences: int, is_shared: bool) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        asyncio.run(_bounded(monkeypatch, steps, num_sequences, is_shared))


async def _bounded(monkeypatch: pytest.MonkeyPatch, steps: list[Step], num_sequences: int, is_shared: bool) -> None:
    script = Script(steps)
    monkeypatch.setattr(module, "_SWEEP_S", 0.001)
    async with connected(monkeypatch, script) as (client, loop):
        pauses = Pauses(monkeypatch, client)
        sizes = [1] * num_sequences if is_shared else [num_sequences]
        calls = [client.map("embed", ids=[[5, 6]] * size, timeout_s=TIMEOUT_S) for size in sizes]
        answered: asyncio.Future[list[list[Any]]] = asyncio.gather(*calls)
        while not answered.done():
            await asyncio.sleep(0)
            if script.silent:
                pauses.seconds.append(TIMEOUT_S)  # the deadline passes
        results = [row for call in await answered for row in call]
    assert len(results) == num_sequences
    kinds = (np.ndarray, Overloaded, Expired, BadTokenId, InvalidRequest)
    assert {type(result) for result in results} <= set(kinds)
    counts = script.counts
    bad, large = counts["bad row"], counts["too large"]
    assert sum(counts[kind] for kind in OVERLOAD) <= MOST_SENDS
    assert counts["expired"] + counts["expired row"] + counts["silence"] <= 1  # each ends the record
    assert bad + large <= 2 * num_sequences
    # Each record was refused, settled rows, or was too large for one.
    assert len(loop.requests) == counts.total() <= MOST_SENDS + bad + large + counts["ok"] + 1
    assert counts["ok"] <= 1 + large
    assert len({dict(record.headers)[DEADLINE_MS] for record in loop.records}) == 1  # the deadline of the call
    named = bad + counts["overloaded and bad row"]
    assert Counter(map(type, results))[BadTokenId] <= named


async def test_a_record_that_meets_draining_workers_keeps_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch, lambda request: ShuttingDown("", {0: ShuttingDown("")})) as (client, loop):
        pauses = Pauses(monkeypatch, client)
        results = await within(300, client.map("embed", ids=[[1], [2]], timeout_s=30))
    assert [type(result) for result in results] == [ShuttingDown] * 2
    assert sum(pauses.seconds) <= 30
    assert len(loop.requests) <= 9 + 30 / 6
    assert len({dict(record.headers)[DEADLINE_MS] for record in loop.records}) == 1
