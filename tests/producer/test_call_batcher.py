"""Calls that share records: each caller gets what it would get alone. Broker and worker are a function."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.producer.errors import BadTokenId, Expired, InvalidRequest, PenstockError, TooLong
from penstock.producer.one_revision import OneRevision
from penstock.producer.transport.attempts import Attempts
from penstock.producer.transport.call_batcher import CallBatcher, Result
from penstock.producer.wire.messages import Options, Reply
from penstock.producer.wire.sequences import Kind, check
from penstock.producer.wire.vector_tables import TokenVectorTable
from tests.examples import examples

AT_MOST = 6  # sequences that the worker below answers at once
Turn = list[tuple[float, bool, bool, list[list[int]]]]  # calls made at once: timeout, float16?, cancelled?, sequences


class Worker:
    """Answers a sequence with its length and sum, in the requested dtype.

    From 1000 an id is refused, from 2000 it breaks the engine; a record of too many sequences is refused whole.
    """

    def __init__(self) -> None:
        self.records: list[list[list[int]]] = []
        self.deadlines: list[float] = []

    async def ask(self, task: str, options: Options, sequences: Sequence[Any], attempts: Attempts) -> Reply:
        await asyncio.sleep(0)
        given = [np.frombuffer(sequence, np.uint32).tolist() for sequence in sequences]
        self.records.append(given)
        self.deadlines.append(attempts.deadline)
        if len(given) > AT_MOST:
            raise InvalidRequest(f"send at most {AT_MOST} sequences")
        for kind, lowest, highest in ((BadTokenId, 1000, 2000), (TooLong, 2000, 3000)):
            rows = {i: kind(f"found {max(ids)}") for i, ids in enumerate(given) if lowest <= max(ids) < highest}
            if rows:
                raise kind(f"Sequence {next(iter(rows))}: at fault", rows)
        vectors = np.array([[len(ids), sum(ids)] for ids in given], options.dtype)
        return Reply("m", "r", vectors, token_vectors=TokenVectorTable((1,) * len(given), vectors))


def make(worker: Worker, *, share: bool = True, sequences_per_record: int = 64) -> CallBatcher:
    return CallBatcher(worker.ask, sequences_per_record=sequences_per_record, share=share)


async def ask(
    batcher: CallBatcher, ids: Sequence[Any], *, task: str = "embed", dtype: str = "float32", timeout_s: float = 30
) -> list[Result]:
    return await batcher.results(task, Options(dtype=dtype), *check(task, None, ids), timeout_s, OneRevision())


async def test_a_call_that_is_told_of_replies_shares_no_record() -> None:
    """Its tokens are then the sum of those that the replies count, of records that are halved and refused too."""
    worker = Worker()
    batcher = make(worker)
    told: list[int] = []
    kind, given = check("embed", None, [[1]] * 7 + [[1000]])
    asked = batcher.results(
        "embed", Options(), kind, given, 30, OneRevision(), lambda reply, num_rows: told.append(num_rows)
    )
    alone, *others = await asyncio.gather(asked, ask(batcher, [[2]]), ask(batcher, [[3]]))
    assert [isinstance(result, PenstockError) for result in alone] == [False] * 7 + [True]
    assert sum(told) == 7
    assert [[2], [3]] in worker.records
    assert all([2] not in record for record in worker.records if [1] in record)
    assert len(others) == 2


def shown(results: list[Result]) -> list[object]:
    return [
        (type(result), str(result)) if isinstance(result, PenstockError) else (result.dtype, result.tolist())  # type: ignore[union-attr]  # vectors here
        for result in results
    ]


async def test_calls_of_one_turn_share_a_record() -> None:
    worker = Worker()
    batcher = make(worker)
    results = await asyncio.gather(*[ask(batcher, [[n, n]]) for n in range(AT_MOST)])
    assert [result.tolist() for [result] in results] == [[2, 2 * n] for n in range(AT_MOST)]  # type: ignore[union-attr]  # vectors
    assert worker.records == [[[n, n] for n in range(AT_MOST)]]


async def test_calls_of_different_turns_do_not_wait_for_each_other() -> None:
    worker = Worker()
    batcher = make(worker)
    first = asyncio.create_task(ask(batcher, [[1]]))
    await asyncio.sleep(0)  # it is put
    await asyncio.sleep(0)  # it is sent
    second = asyncio.create_task(ask(batcher, [[2]]))
    await asyncio.gather(first, second)
    assert worker.records == [[[1]], [[2]]]


@pytest.mark.parametrize("other", [{"dtype": "float16"}, {"timeout_s": 7}])
async def test_only_equal_calls_share(other: dict[str, Any]) -> None:
    worker = Worker()
    batcher = make(worker)
    await asyncio.gather(ask(batcher, [[1]]), ask(batcher, [[2]], **other), ask(batcher, [[3]]))
    assert sorted(worker.records) == [[[1], [3]], [[2]]]


async def test_records_are_bounded_in_number_and_bytes() -> None:
    worker = Worker()
    few, small = make(worker, sequences_per_record=2), make(worker)
    await asyncio.gather(*[ask(few, [[n]]) for n in range(5)])
    assert [len(record) for record in worker.records] == [2, 2, 1]
    worker.records.clear()
    await asyncio.gather(*[ask(small, [[n] * 30_000]) for n in range(5)])
    assert [len(record) for record in worker.records] == [2, 2, 1]
    worker.records.clear()
    await asyncio.gather(*[ask(small, [[n] * 500], task="embed_tokens") for n in range(5)])  # whose replies are large
    assert [len(record) for record in worker.records] == [2, 2, 1]


async def test_of_some_tasks_each_sequence_is_a_record() -> None:
    worker = Worker()
    batcher = CallBatcher(worker.ask, sequences_per_record=64, share=True, one_per_record=("embed",))
    await asyncio.gather(ask(batcher, [[1], [2, 2]]), ask(batcher, [[3]]))
    assert sorted(worker.records) == [[[1]], [[2, 2]], [[3]]]


async def test_without_sharing_every_call_is_a_record() -> None:
    worker = Worker()
    batcher = make(worker, share=False)
    await asyncio.gather(ask(batcher, [[1], [2]]), ask(batcher, [[3]]))
    assert worker.records == [[[1], [2]], [[3]]]


@pytest.mark.parametrize("share", [True, False])
async def test_a_sequence_has_its_row_or_an_error_that_names_it(share: bool) -> None:
    worker = Worker()
    found = [shown(await ask(make(worker, share=share), [[first]]))[0] for first in (7, 1000, 2000)]
    row = (np.dtype("float32"), [1, 7])
    assert found == [row, (BadTokenId, "Sequence 0: found 1000"), (TooLong, "Sequence 0: found 2000")]


@pytest.mark.parametrize("share", [True, False])
async def test_a_reply_of_another_number_of_rows_is_no_answer(share: bool) -> None:
    async def answer(task: str, options: Options, sequences: Sequence[Any], attempts: Attempts) -> Reply:
        return Reply("m", "r", np.zeros((2, 3), np.float32))

    [result] = await ask(CallBatcher(answer, sequences_per_record=64, share=share), [[1]])
    assert str(result) == "The worker answered 1 sequences with 2 rows."


async def test_a_list_shares_its_last_record() -> None:
    worker = Worker()
    batcher = make(worker, sequences_per_record=4)
    await asyncio.gather(ask(batcher, [[n] for n in range(6)]), ask(batcher, [[9]]))
    assert worker.records == [[[0], [1], [2], [3]], [[4], [5], [9]]]


async def test_nothing_that_can_be_sent_is_no_record() -> None:
    worker = Worker()
    assert shown(await ask(make(worker), [[], None])) == shown(check("embed", None, [[], None])[1])  # type: ignore[arg-type,list-item]  # errors
    assert worker.records == []


async def test_a_cancelled_call_does_not_affect_the_others_and_is_not_sent_again() -> None:
    worker = Worker()
    batcher = make(worker)
    calls = [asyncio.create_task(ask(batcher, [[n]])) for n in (1, 2, 1500, 3)]
    await asyncio.sleep(0)
    calls[0].cancel()  # before the record is sent
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    calls[1].cancel()  # while it is on its way
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError, asyncio.CancelledError, list, list]
    refused = (BadTokenId, "Sequence 0: found 1500")
    assert shown(results[2] + results[3]) == [refused, (np.dtype("float32"), [1, 3])]  # type: ignore[operator]  # lists
    assert worker.records == [[[2], [1500], [3]], [[3]]]


async def test_the_last_caller_that_leaves_takes_the_record_along() -> None:
    ended = asyncio.Event()

    async def never(task: str, options: Options, sequences: Sequence[Any], attempts: Attempts) -> Reply:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise RuntimeError("Never came.")

    batcher = CallBatcher(never, sequences_per_record=64, share=True)
    calls = [asyncio.create_task(ask(batcher, [[n], [n]])) for n in range(3)]
    for _ in range(5):
        await asyncio.sleep(0)
    calls[0].cancel()
    calls[1].cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not ended.is_set()
    calls[2].cancel()
    await asyncio.wait_for(ended.wait(), 60)
    await asyncio.gather(*calls, return_exceptions=True)


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("error", [Expired("too late"), ValueError("a bug")])
async def test_an_error_of_the_whole_record_is_that_of_each_call(error: Exception, share: bool) -> None:
    async def fail(task: str, options: Options, sequences: Sequence[Any], attempts: Attempts) -> Reply:
        raise error

    batcher = CallBatcher(fail, sequences_per_record=64, share=share)
    results = await asyncio.gather(*[ask(batcher, [[n]]) for n in range(3)], return_exceptions=True)
    if isinstance(error, PenstockError):
        own = [result[0] for result in results if isinstance(result, list)]
        assert [str(result) for result in own] == ["too late"] * 3
        assert len(set(map(id, own))) == 3  # raised by different callers, so with tracebacks of their own
    else:
        assert [str(result) for result in results] == ["a bug"] * 3


def test_texts_and_pairs_are_told_apart() -> None:
    assert check("embed", ["a", "b"], None)[0] is Kind.TEXTS
    assert check("embed", ["a", ("b", "c")], None)[0] is Kind.PAIRS
    assert check("embed", None, [[1]])[0] is Kind.IDS


IDS = st.lists(st.integers(1, 9) | st.sampled_from([1000, 1001, 2000, 2001]), max_size=3)
CALL = st.tuples(
    st.sampled_from([10.0, 20.0]), st.booleans(), st.sampled_from([False, False, True]), st.lists(IDS, max_size=8)
)


@pytest.mark.slow
@settings(max_examples=examples(200))
@given(st.lists(st.lists(CALL, max_size=8), max_size=3), st.integers(1, 12))
def test_every_caller_gets_what_it_would_get_alone(turns: list[Turn], sequences_per_record: int) -> None:
    async def alone() -> list[list[object]]:
        calls = [call for turn in turns for call in turn]
        return [
            shown(await ask(make(Worker(), share=False), ids, dtype=_dtype(half), timeout_s=timeout_s))
            for timeout_s, half, leaves, ids in calls
            if not leaves
        ]

    async def together() -> list[list[object]]:
        batcher = make(worker, sequences_per_record=sequences_per_record)
        stay: list[asyncio.Task[list[Result]]] = []
        leave: list[asyncio.Task[list[Result]]] = []
        for number, turn in enumerate(turns):
            for timeout_s, half, leaves, ids in turn:
                task = asyncio.create_task(ask(batcher, ids, dtype=_dtype(half), timeout_s=timeout_s))
                (leave if leaves else stay).append(task)
            for _ in range(1 + number):  # before the record is sent, and later
                await asyncio.sleep(0)
            for task in leave:
                task.cancel()
        await asyncio.gather(*leave, return_exceptions=True)
        return [shown(results) for results in await asyncio.gather(*stay)]

    worker = Worker()
    assert asyncio.run(together()) == asyncio.run(alone())
    assert all(0 < len(record) <= sequences_per_record for record in worker.records)


def _dtype(half: bool) -> str:
    return "float16" if half else "float32"
