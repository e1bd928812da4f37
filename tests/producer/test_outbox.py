"""Records out, against a stand-in for aiokafka's producer: order, batches, retries, refusals. No broker."""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import (
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    NotLeaderForPartitionError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from penstock.producer.aiokafka_internals.producer import FailoverProducer
from penstock.producer.transport import outbox as module
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.transport.outbox import Outbox, OutRecord


class Batch:
    """Takes as many bytes of values as `room`, but always one record."""

    def __init__(self, room: int) -> None:
        self.values: list[bytes] = []
        self.retry_count = 1
        self._room = room

    def record_count(self) -> int:
        return len(self.values)

    def append(self, *, timestamp: None, key: bytes, value: bytes, headers: object) -> object | None:
        if not isinstance(key, bytes):
            raise TypeError("a key is bytes")
        if self.values and sum(map(len, self.values)) + len(value) > self._room:
            return None
        self.values.append(value)
        return object()


class StandIn:
    """A fake of the producer that Outbox uses. Topics have three partitions; `answers` gives each batch's result."""

    def __init__(self, answers: Callable[[list[bytes]], Awaitable[None]], room: int = 1_000_000) -> None:
        self.sent: dict[tuple[str, int], list[list[bytes]]] = defaultdict(list)  # batches acknowledged
        self.stopped = False
        self._answers = answers
        self._room = room
        self.client = self.cluster = self  # of which Outbox asks force_metadata_update and topics
        self._txn_manager = self._message_accumulator = self  # of which it asks increment_sequence_number, fail_all
        self._batches: dict[tuple[str, int], list[Batch]] = defaultdict(list)
        self.counted: dict[tuple[str, int], int] = defaultdict(int)  # records that the broker is thought to have
        self.brokers_away = 0  # how many more times no broker can be asked for the topic "late"
        self._is_out_of_order = False
        self._sender = type("Sender", (), {"sender_task": asyncio.get_running_loop().create_future()})()

    async def start(self) -> None: ...

    async def stop(self) -> None:
        self.stopped = True

    # What is made of the answers is the product's own.
    deliver = FailoverProducer.deliver
    can_go_on = FailoverProducer.can_go_on
    fail_batches = FailoverProducer.fail_batches

    def die(self) -> None:
        self._sender.sender_task.set_result(None)

    def partitions_for_topic(self, topic: str) -> None:
        """No topic is known: each is asked for."""

    async def partitions_for(self, topic: str) -> set[int]:
        if topic == "nowhere" or (topic == "late" and self.brokers_away):
            raise UnknownTopicOrPartitionError(topic)
        return {0, 1, 2}

    async def force_metadata_update(self) -> bool:
        self.brokers_away = max(0, self.brokers_away - 1)
        return not self.brokers_away

    def topics(self) -> set[str]:
        return set() if self.brokers_away else {"t", "late"}

    def forget(self, topic: str) -> None: ...

    async def flush(self) -> None: ...

    async def close(self) -> None: ...

    def fail_all(self, error: Exception) -> None: ...

    def increment_sequence_number(self, source: TopicPartition, by: int) -> None:
        self.counted[source.topic, source.partition] += by

    def create_batch(self) -> Batch:
        return Batch(self._room)

    async def send_batch(self, batch: Batch, topic: str, *, partition: int) -> Awaitable[None]:
        self.counted[topic, partition] += len(batch.values)
        self._batches[topic, partition].append(batch)

        async def acknowledge() -> None:
            await self._answers(batch.values)
            self.sent[topic, partition].append(batch.values)

        return acknowledge()


@asynccontextmanager
async def outbox_over(*producers: Any) -> AsyncIterator[Outbox]:
    """An Outbox whose first producer is the first of these, its replacement the second, and so on; then the last."""
    made = itertools.chain(producers, itertools.repeat(producers[-1]))
    outbox = Outbox(KafkaCluster("nowhere:1"), client_id="test")
    outbox._make_producer = lambda: next(made)  # type: ignore[method-assign]  # the one place where aiokafka is made
    await outbox.start()
    yield outbox
    await outbox.stop(timeout_s=1.0)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries need not be waited for."""
    monkeypatch.setattr(module, "_RETRY_S", 0.0)


async def accept(values: list[bytes]) -> None: ...


class Results:
    """Outcome of each record, in the order of completion."""

    def __init__(self) -> None:
        self.of: list[tuple[bytes, KafkaError | None]] = []

    def record(self, value: bytes, key: bytes = b"key!") -> OutRecord:
        return OutRecord(key, value, [], lambda _, error: self.of.append((value, error)))

    @property
    def refused(self) -> list[bytes]:
        return [value for value, error in self.of if error is not None]


async def test_what_is_put_while_a_batch_is_away_leaves_in_the_next_one_in_order() -> None:
    gate = asyncio.Event()

    async def slowly(values: list[bytes]) -> None:
        await gate.wait()

    producer, results = StandIn(slowly), Results()
    async with outbox_over(producer) as outbox:
        outbox.put("t", 1, [results.record(b"0")])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for n in range(1, 6):
            outbox.put("t", 1, [results.record(b"%d" % n)])
        assert results.of == []
        gate.set()
        await outbox.flush()
    assert producer.sent["t", 1] == [[b"0"], [b"1", b"2", b"3", b"4", b"5"]]
    assert results.of == [(b"%d" % n, None) for n in range(6)]


async def test_nothing_is_done_before_its_acknowledgement() -> None:
    events: list[str] = []

    async def answer(values: list[bytes]) -> None:
        events.append(f"produced {b''.join(values).decode()}")

    async with outbox_over(StandIn(answer)) as outbox:
        outbox.put("t", 0, [OutRecord(b"key!", b"a", [], lambda *_: events.append("done a"))])
        outbox.put("t", 0, [OutRecord(b"key!", b"b", [], lambda *_: events.append("done b"))])
        await outbox.flush()
    assert events == ["produced ab", "done a", "done b"]


async def test_a_record_without_a_partition_goes_where_its_key_says() -> None:
    producer, results = StandIn(accept), Results()
    async with outbox_over(producer) as outbox:
        for n in range(9):
            outbox.put("t", None, [results.record(b"%d" % n, key=n.to_bytes(4, "big"))])
        await outbox.flush()
    assert {p: producer.sent["t", p] for p in range(3)} == {
        0: [[b"0", b"3", b"6"]],
        1: [[b"1", b"4", b"7"]],
        2: [[b"2", b"5", b"8"]],
    }


async def test_a_full_batch_leaves_and_the_rest_follows() -> None:
    producer, results = StandIn(accept, room=10), Results()
    async with outbox_over(producer) as outbox:
        for value in (b"aaaa", b"bbbb", b"cccc", b"d" * 50, b"e"):
            outbox.put("t", 0, [results.record(value)])
        await outbox.flush()
    assert producer.sent["t", 0] == [[b"aaaa", b"bbbb"], [b"cccc"], [b"d" * 50], [b"e"]]


@pytest.mark.parametrize("error", [NotLeaderForPartitionError(), KafkaTimeoutError(), KafkaError("what is this")])
async def test_a_failed_batch_is_sent_again_until_it_is_acknowledged(error: KafkaError) -> None:
    failures = 3

    async def fail_first(values: list[bytes]) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise error

    producer, results = StandIn(fail_first), Results()
    async with outbox_over(producer) as outbox:
        for n in range(4):
            outbox.put("t", 0, [results.record(b"%d" % n)])
        await outbox.flush()
    assert [value for batch in producer.sent["t", 0] for value in batch] == [b"0", b"1", b"2", b"3"]
    assert results.of == [(b"%d" % n, None) for n in range(4)]


async def test_a_record_that_is_too_large_is_refused_alone() -> None:
    async def refuse_large(values: list[bytes]) -> None:
        if sum(map(len, values)) > 100:
            raise MessageSizeTooLargeError("too large")

    producer, results = StandIn(refuse_large), Results()
    async with outbox_over(producer) as outbox:
        for value in (b"a" * 60, b"b" * 60, b"c" * 101, b"d"):
            outbox.put("t", 0, [results.record(value)])
        await outbox.flush()
    assert results.refused == [b"c" * 101]
    assert producer.counted["t", 0] == 3
    assert [value for batch in producer.sent["t", 0] for value in batch] == [b"a" * 60, b"b" * 60, b"d"]


@pytest.mark.parametrize(("topic", "partition"), [("nowhere", 0), ("nowhere", None), ("t", 3)])
async def test_a_destination_that_is_not_there_refuses_its_own_records_only(topic: str, partition: int | None) -> None:
    producer, results = StandIn(accept), Results()
    async with outbox_over(producer) as outbox:
        outbox.put(topic, partition, [results.record(b"lost")])
        outbox.put("t", 0, [results.record(b"fine")])
        await outbox.flush()
    assert results.refused == [b"lost"]
    assert producer.sent["t", 0] == [[b"fine"]]


async def test_a_topic_is_not_missing_while_no_broker_answers() -> None:
    producer, results = StandIn(accept), Results()
    producer.brokers_away = 3
    async with outbox_over(producer) as outbox:
        outbox.put("late", 0, [results.record(b"kept")])
        await outbox.flush()
    assert results.of == [(b"kept", None)]


async def test_a_producer_that_died_is_replaced_and_nothing_is_lost() -> None:
    async def die(values: list[bytes]) -> None:
        if not first._sender.sender_task.done():
            first.die()
        raise KafkaError("fenced")

    first, second, results = StandIn(die), StandIn(accept), Results()
    async with outbox_over(first, second) as outbox:
        for partition in range(3):
            outbox.put("t", partition, [results.record(b"%d" % partition)])
        await outbox.flush()
    assert first.stopped
    assert [second.sent["t", partition] for partition in range(3)] == [[[b"0"]], [[b"1"]], [[b"2"]]]


async def test_a_producer_whose_batch_failed_is_replaced_and_ends_its_other_batches() -> None:
    gate, replied = asyncio.Event(), asyncio.Event()

    async def reply(values: list[bytes]) -> None:
        asyncio.get_running_loop().call_soon(replied.set)

    async def fail_some(values: list[bytes]) -> None:
        if values == [b"slow"]:
            await gate.wait()
        else:
            raise KafkaError("unknown server error")

    first, second, results = StandIn(fail_some), StandIn(reply), Results()
    async with outbox_over(first, second) as outbox:
        outbox.put("t", 0, [results.record(b"slow")])
        outbox.put("t", 1, [results.record(b"failed")])
        await asyncio.wait_for(replied.wait(), 60)
        assert results.of == [(b"failed", None)]
        gate.set()
        await outbox.flush()
    assert results.of == [(b"failed", None), (b"slow", None)]
    assert second.sent == {("t", 1): [[b"failed"]]}
    assert first.sent == {("t", 0): [[b"slow"]]}


@pytest.mark.parametrize("refusal", [MessageSizeTooLargeError(), TopicAuthorizationFailedError()])
@pytest.mark.parametrize("attempts", [1, 2])
async def test_numbers_are_taken_back_only_if_the_broker_can_have_seen_none(refusal: KafkaError, attempts: int) -> None:
    async def refuse(values: list[bytes]) -> None:
        first._batches["t", 0][-1].retry_count = attempts
        raise refusal

    first, second, results = StandIn(refuse), StandIn(accept), Results()
    async with outbox_over(first, second) as outbox:
        outbox.put("t", 0, [results.record(b"a")])
        await outbox.flush()
    assert results.refused == [b"a"]
    assert first.counted["t", 0] == attempts - 1
    assert first.stopped
    assert second.stopped == (attempts == 2)


async def test_stopping_gives_up_what_is_not_acknowledged_in_time() -> None:
    async def never(values: list[bytes]) -> None:
        await asyncio.Event().wait()

    producer: Any = StandIn(never)
    results = Results()
    outbox = Outbox(KafkaCluster("nowhere:1"), client_id="test")
    outbox._make_producer = lambda: producer  # type: ignore[method-assign]  # the one place where aiokafka is made
    await outbox.start()
    outbox.put("t", 0, [results.record(b"a")])
    await outbox.stop(timeout_s=0.01)
    assert producer.stopped
    assert results.of == []


async def test_use_before_start_is_a_bug() -> None:
    with pytest.raises(RuntimeError, match="This is a bug"):
        await Outbox(KafkaCluster("nowhere:1"), client_id="test").partitions("t")


async def test_batches_shrink_by_halves_and_grow_back_slowly_where_the_broker_refuses_their_size() -> None:
    tried: list[int] = []

    async def refuse_many(values: list[bytes]) -> None:
        tried.append(len(values))
        if len(values) > 100:
            raise MessageSizeTooLargeError("too large")

    producer, results = StandIn(refuse_many), Results()
    async with outbox_over(producer) as outbox:
        for n in range(2000):
            outbox.put("t", 0, [results.record(b"%d" % n)])
        await outbox.flush()
        outbox.put("t", 1, [results.record(b"elsewhere")])
        for n in range(2000, 2050):
            outbox.put("t", 0, [results.record(b"%d" % n)])
        await outbox.flush()
    refused = [size for size in tried if size > 100]
    assert tried[:6] == [2000, 1000, 500, 250, 125, 62]
    assert len(refused) <= 5 + len(tried) / 4
    assert sum(tried) - sum(refused) == 2051
    assert [value for value, _ in results.of if value != b"elsewhere"] == [b"%d" % n for n in range(2050)]
    assert results.refused == []


@pytest.mark.parametrize("error", [ValueError("unexpected"), AssertionError(), AttributeError("no such thing")])
async def test_an_unexpected_error_completes_its_batch_and_the_next_one_is_sent(error: Exception) -> None:
    failures = [error]

    async def fail_first(values: list[bytes]) -> None:
        if failures:
            raise failures.pop()

    producer, results = StandIn(fail_first, room=2), Results()
    async with outbox_over(producer) as outbox:
        with capture_logs() as logs:
            for n in range(4):
                outbox.put("t", 0, [results.record(b"%d" % n)])
            await outbox.flush()
    assert [value for value, _ in results.of] == [b"0", b"1", b"2", b"3"]
    assert results.refused == [b"0", b"1"]
    assert "This is a bug." in str(results.of[0][1])
    assert [log["event"] for log in logs] == ["send_failed", "producer_replaced"]
    assert logs[0]["detail"] == "This is a bug."


async def test_a_producer_that_died_of_a_surprise_is_replaced() -> None:
    async def die(values: list[bytes]) -> None:
        first.die()
        raise ValueError("its sender is broken")

    first, second, results = StandIn(die, room=1), StandIn(accept), Results()
    async with outbox_over(first, second) as outbox:
        for n in range(3):
            outbox.put("t", 0, [results.record(b"%d" % n)])
        await outbox.flush()
    assert results.refused == [b"0"]
    assert second.sent["t", 0] == [[b"1", b"2"]]


async def test_a_producer_that_cannot_be_replaced_yet_is_replaced_later() -> None:
    async def die(values: list[bytes]) -> None:
        if not first._sender.sender_task.done():
            first.die()
        raise KafkaError("fenced")

    async def refuse() -> None:
        raise KafkaError("not authorized")

    first, second, third, results = StandIn(die), StandIn(accept), StandIn(accept), Results()
    second.start = refuse  # type: ignore[method-assign]  # a broker that turns the newcomer away
    async with outbox_over(first, second, third) as outbox:
        outbox.put("t", 0, [results.record(b"0")])
        await outbox.flush()
    assert results.of == [(b"0", None)]
    assert third.sent["t", 0] == [[b"0"]]


async def test_a_sender_that_dies_reaches_the_event_loop() -> None:
    """Its records have no outcome, so that a worker which goes on would commit nothing more of their partitions."""

    async def die(values: list[bytes]) -> None:
        first.die()
        raise KafkaError("fenced")

    async def refuse() -> None:
        raise ValueError("a bug")

    first, second, results = StandIn(die), StandIn(accept), Results()
    second.start = refuse  # type: ignore[method-assign]  # an error that is none of Kafka's
    caught = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: caught.set_result(context))
    async with outbox_over(first, second) as outbox:
        outbox.put("t", 0, [results.record(b"0")])
        context = await asyncio.wait_for(caught, 60)
    assert repr(context["exception"]) == "ValueError('a bug')"
    assert "handle" in context  # of a callback, unlike a task, whose error may still be awaited


async def test_a_record_that_cannot_be_encoded_fails_alone() -> None:
    producer, results = StandIn(accept), Results()
    async with outbox_over(producer) as outbox:
        for value, key in ((b"0", b"key!"), (b"1", "key!"), (b"2", b"key!")):
            outbox.put("t", 0, [results.record(value, key)])  # type: ignore[arg-type]  # this is the mistake
        await outbox.flush()
    assert results.refused == [b"1"]
    assert [value for batch in producer.sent["t", 0] for value in batch] == [b"0", b"2"]


async def test_a_surprise_before_the_sending_completes_what_waits() -> None:
    producer, results = StandIn(accept), Results()

    async def partitions_for(topic: str) -> set[int]:
        raise ValueError("unexpected")

    async with outbox_over(producer) as outbox:
        producer.partitions_for, usual = partitions_for, producer.partitions_for  # type: ignore[method-assign]  # once
        outbox.put("t", 0, [results.record(b"0")])
        outbox.put("t", None, [results.record(b"1")])
        await outbox.flush()
        producer.partitions_for = usual  # type: ignore[method-assign]  # as it was
        outbox.put("t", 0, [results.record(b"2")])
        await outbox.flush()
    assert results.refused == [b"0", b"1"]
    assert producer.sent["t", 0] == [[b"2"]]


async def test_records_that_share_a_callable_end_together() -> None:
    ended: list[tuple[list[bytes | None], object]] = []

    def done(records: Sequence[OutRecord], error: KafkaError | None) -> None:
        ended.append(([record.value for record in records], error))

    producer, results = StandIn(accept), Results()
    async with outbox_over(producer) as outbox:
        outbox.put("t", 0, [OutRecord(b"key!", b"%d" % n, [], done) for n in range(3)])
        outbox.put("t", 0, [results.record(b"other")])
        outbox.put("t", 0, [OutRecord(b"key!", b"3", [], done)])
        await outbox.flush()
    assert ended == [([b"0", b"1", b"2"], None), ([b"3"], None)]
    assert producer.sent["t", 0] == [[b"0", b"1", b"2", b"other", b"3"]]


async def test_a_failing_callback_does_not_block_the_others() -> None:
    def fails(_: Sequence[OutRecord], error: KafkaError | None) -> None:
        raise ValueError("the owner is broken")

    producer, results = StandIn(accept), Results()
    async with outbox_over(producer) as outbox:
        outbox.put("t", 0, [OutRecord(b"key!", b"0", [], fails)])
        outbox.put("t", 0, [results.record(b"1")])
        await outbox.flush()
    assert results.of == [(b"1", None)]
    assert producer.sent["t", 0] == [[b"0", b"1"]]


class Withdrawn(KafkaError):  # type: ignore[misc]  # aiokafka has no type information
    """Of the records that a test withdraws."""


# Of each batch of a partition: how many turns of the event loop it takes, and whether it is acknowledged.
TURNS = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=12)


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=30), TURNS, st.integers(0, 20))
def test_what_is_withdrawn_is_not_sent_afterwards_and_all_else_is_in_order(
    records: list[tuple[int, bool]], turns: list[tuple[int, bool]], num_turns: int
) -> None:
    """`records`: partition, and whether it is gone. `num_turns`: before the withdrawal."""
    coming = iter(turns)

    async def answer(values: list[bytes]) -> None:
        wait, is_acknowledged = next(coming, (0, True))
        for _ in range(wait):
            await asyncio.sleep(0)
        if not is_acknowledged:
            raise KafkaError("failed")

    gone = {b"%d" % n for n, (_, is_gone) in enumerate(records) if is_gone}

    async def play() -> tuple[StandIn, Results]:
        producer, results = StandIn(answer, room=4), Results()
        async with outbox_over(producer) as outbox:
            for n, (partition, _) in enumerate(records):
                outbox.put("t", partition, [results.record(b"%d" % n)])
            for _ in range(num_turns):
                await asyncio.sleep(0)
            assert await outbox.withdraw(lambda one: one.value in gone, Withdrawn(), 60.0)
            sent = {source: len(batches) for source, batches in producer.sent.items()}
            assert gone <= {value for value, _ in results.of}
            await outbox.flush()
        later = [batch for source, batches in producer.sent.items() for batch in batches[sent.get(source, 0) :]]
        assert gone.isdisjoint(value for batch in later for value in batch)
        return producer, results

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_RETRY_S", 0.0)
        producer, results = asyncio.run(play())
    ends = dict(results.of)
    assert len(ends) == len(results.of) == len(records)
    assert all(error is None or (value in gone and isinstance(error, Withdrawn)) for value, error in ends.items())
    for partition in range(3):
        values = [value for batch in producer.sent["t", partition] for value in batch]
        expected = [b"%d" % n for n, (own, _) in enumerate(records) if own == partition]
        assert values == [value for value in expected if ends[value] is None]


async def test_a_batch_that_does_not_end_is_made_to_fail_and_its_records_are_withdrawn() -> None:
    failed = asyncio.Event()

    async def hang(values: list[bytes]) -> None:
        await failed.wait()
        raise KafkaError("made to fail")

    hanging, producer, results = StandIn(hang, room=1), StandIn(accept), Results()
    hanging.fail_all = lambda error: failed.set()  # type: ignore[method-assign]
    async with outbox_over(hanging, producer) as outbox:
        outbox.put("t", 0, [results.record(b"a"), results.record(b"b"), results.record(b"c")])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not await outbox.withdraw(lambda one: one.value != b"b", Withdrawn(), 0.01)
        await outbox.flush()
    assert sorted(results.refused) == [b"a", b"c"]
    assert hanging.sent == {}
    assert producer.sent == {("t", 0): [[b"b"]]}
