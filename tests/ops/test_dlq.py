"""Dead letters hold what anybody has written: no list, replay or answer ends with one of them."""

import json
import zlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
from aiokafka.errors import (
    KafkaError,
    MessageSizeTooLargeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from penstock.engine import BatchOutput, NullEngine, PackedBatch, TaskOptions
from penstock.ops.cli.dead_letters import letter_selection
from penstock.ops.cli.dead_letters.answerer import open_answerer
from penstock.ops.cli.dead_letters.dead_letter import DeadLetter
from penstock.ops.cli.dead_letters.dlq import AnswerSettings, Listing, shown_as_json
from penstock.ops.cli.dead_letters.letter_selection import Selection, read_letters
from penstock.ops.cli.dead_letters.record_sender import RecordSender, open_sender
from penstock.ops.cli.dead_letters.replayer import LetterAnswers, Replayer, ReplayOptions
from penstock.ops.cli.terminal import EXIT_PROBLEM, BadUsage
from penstock.producer.aiokafka_internals.lenient_records import UNREADABLE
from penstock.producer.aiokafka_internals.record_batches import UNREADABLE_BATCH
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.transport.outbox import OutRecord
from penstock.producer.wire.codec import decode_reply, encode_request
from penstock.producer.wire.joint_letters import LetterRecord, encode_letter_records
from penstock.producer.wire.messages import Reply, Request, join_tokens
from tests.engine.helpers import cpu_engine, save_encoder

OPTIONS = ReplayOptions()


def letter(timestamp: int, *headers: tuple[str, bytes]) -> DeadLetter:
    record = SimpleNamespace(
        topic="t.dead-letter", partition=0, offset=1, key=None, value=b"x", timestamp=timestamp, headers=list(headers)
    )
    return DeadLetter.of(record, bulk=False)


def print_letters(letters: Sequence[DeadLetter], most: int = 100) -> None:
    listing = Listing(most)
    for one in letters:
        listing.add(one.summary())
    listing.print()


@pytest.mark.parametrize("timestamp", [-1, 2**62, 253_402_300_800_000, -(10**15)])
def test_a_letter_with_any_timestamp_is_listed(timestamp: int, capsys: pytest.CaptureFixture[str]) -> None:
    print_letters([letter(timestamp)])
    assert "0:1" in capsys.readouterr().out


def test_no_letter_controls_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_letters([letter(0, ("penstock-error-message", b"\x1b[2J\x1b]0;title\x07text"))])
    shown = capsys.readouterr().out
    assert "text" in shown
    assert "\x1b" not in shown
    assert "\x07" not in shown


def test_no_shown_letter_controls_the_terminal() -> None:
    shown = shown_as_json(letter(0, ("penstock-error-message", "\x1b[2J\x9b2Jé".encode())).details())
    assert all(one.isprintable() for one in shown.replace("\n", ""))
    assert json.loads(shown)["message"] == "\x1b[2J\x9b2Jé"


def test_a_letter_shows_the_beginning_of_a_json_request() -> None:
    value = b'{"text": 5, "more": "' + b"x" * 1000 + b'"}'
    kept = letter(0)
    kept.record.value = value
    assert kept.details()["request"] == {"json": value[:500].decode()}


class Broker:
    """An outbox whose broker has one topic."""

    def __init__(self) -> None:
        self.topics: list[str] = []
        self.sent: list[OutRecord] = []

    async def partitions(self, topic: str) -> int:
        if topic != "there":
            raise UnknownTopicOrPartitionError(topic)
        return 2

    def put(self, topic: str, partition: int | None, records: Sequence[OutRecord]) -> None:
        self.topics.append(topic)
        self.sent += records

    async def flush(self) -> None: ...


async def test_a_record_that_cannot_be_sent_again_is_counted_and_the_others_are_sent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    broker = Broker()
    replayer = Replayer(OPTIONS, RecordSender(broker, KafkaCluster("nowhere:1")))  # type: ignore[arg-type]
    for topic in ("there", "gone", "there"):
        await replayer.offer((topic, 0, 1), None, b"x", [], topic)
    await replayer.offer(("there", 0, 2), None, b"x", [(UNREADABLE_BATCH, b"a bomb")], "there")
    assert await replayer.finish() == EXIT_PROBLEM
    assert broker.topics == ["there", "there"]
    shown = capsys.readouterr()
    assert "gone refused 1 record. There is no such topic or partition." in shown.out + shown.err
    assert "Skipped 1 record: in a batch that cannot be read." in shown.out + shown.err


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TopicAuthorizationFailedError("there"), "Kafka denies it: the user needs the ACL WRITE on the topic."),
        (MessageSizeTooLargeError("no room"), "The first error: [Error 10] MessageSizeTooLargeError: no room"),
    ],
)
async def test_the_reason_of_the_first_refusal_is_said(
    error: KafkaError, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = Broker()
    replayer = Replayer(OPTIONS, RecordSender(broker, KafkaCluster("nowhere:1")))  # type: ignore[arg-type]
    for offset in range(2):
        await replayer.offer(("there", 0, offset), None, b"x", [], "there")
    broker.sent[0].done([], error)
    broker.sent[1].done([], KafkaError("a later one"))
    assert await replayer.finish() == EXIT_PROBLEM
    shown = capsys.readouterr()
    assert f"there refused 2 records. {reason}" in " ".join((shown.out + shown.err).split())


async def test_a_header_whose_name_could_not_be_read_is_not_sent_again() -> None:
    """A worker would reject the record for it each time."""
    broker = Broker()
    replayer = Replayer(OPTIONS, RecordSender(broker, KafkaCluster("nowhere:1")))  # type: ignore[arg-type]
    await replayer.offer(("there", 0, 1), None, b"x", [(UNREADABLE, b"1"), ("mine", b"2")], "there")
    (sent,) = broker.sent
    assert sent.headers == [("mine", b"2"), ("penstock-replay-of", b"there-0-1"), ("penstock-replays", b"1")]


OF_T = [("__dlq.errors.topic", b"t"), ("__dlq.errors.partition", b"0"), ("__dlq.errors.offset", b"7")]


@pytest.mark.parametrize(
    ("headers", "obstacle"),
    [
        (OF_T, ""),
        ([*OF_T, ("x-left-out-of-my-shop", b"1")], ""),
        ([*OF_T, ("penstock-value-left-out-bytes", b"1")], "part of the original was left out"),
        ([*OF_T, (UNREADABLE_BATCH, b"a bomb")], "it stands for a batch that could not be read"),
        (OF_T[:2], "it does not say where its original was read"),
        (
            [("__dlq.errors.topic", b"payments"), *OF_T[1:]],
            "it names another topic than the one whose letters lie here",
        ),
    ],
)
def test_only_whole_letters_of_their_own_topic_are_sent_again(headers: list[tuple[str, bytes]], obstacle: str) -> None:
    assert letter(0, *headers).obstacle == obstacle


def request(number: int, *headers: tuple[str, bytes], ids: Sequence[int] = (5, 6), task: str = "embed") -> DeadLetter:
    """A letter whose original is a request to the null model."""
    value = encode_request(Request("null", task, join_tokens([np.array(ids, np.uint32)])))
    address = [("kafka_correlationId", b"c"), ("kafka_replyTopic", b"penstock.replies")]
    one = letter(9, *address, *headers, *OF_T[:2], ("__dlq.errors.offset", b"%d" % number))
    one.record.value = value
    return one


async def test_a_dry_run_connects_to_no_broker_to_write(capsys: pytest.CaptureFixture[str]) -> None:
    async with open_sender(KafkaCluster("127.0.0.1:1"), execute=False) as sender:
        replayer = Replayer(OPTIONS, sender)
        await replayer.offer(("t", 7, 1), None, b"x", [], "t")
        assert await replayer.finish() == 0
    assert capsys.readouterr().err.splitlines() == [
        "Would send 1 record to t.",
        "This was a dry run. Add --execute to send.",
    ]


class TopicsThatGrow:
    """A `TopicReader` of two partitions. Each letter that is read causes one in the other partition."""

    def __init__(self) -> None:
        self.letters = {0: [letter(0, *OF_T)], 1: [letter(0, *OF_T)]}

    async def num_partitions(self, topic: str) -> int | None:
        return 2 if topic == "t.dead-letter" else None

    async def end(self, topic: str, partition: int) -> int:
        return len(self.letters[partition])

    async def records(self, topic: str, partition: int, first: int, last: int) -> AsyncGenerator[Any]:
        for one in self.letters[partition][first : last + 1]:
            self.letters[1 - partition].append(one)
            yield one.record


async def test_letters_that_a_replay_causes_are_not_replayed_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letter_selection, "open_reader", lambda cluster: nullcontext(TopicsThatGrow()))
    everything = Selection()
    assert len([one async for one in read_letters(KafkaCluster("127.0.0.1:1"), "t", everything)]) == 2


@pytest.mark.parametrize(("letters", "topics"), [("all", "u.dead-letter or u.bulk.dead-letter"), ("bulk", "t.bulk")])
async def test_a_model_without_topics_of_letters_is_not_said_to_have_none(
    monkeypatch: pytest.MonkeyPatch, letters: Literal["all", "bulk"], topics: str
) -> None:
    monkeypatch.setattr(letter_selection, "open_reader", lambda cluster: nullcontext(TopicsThatGrow()))
    chosen = Selection(letters=letters)
    with pytest.raises(BadUsage, match=f"There is no topic {topics}"):
        await anext(read_letters(KafkaCluster("127.0.0.1:1"), topics[0], chosen))


class TestAnswers:
    """Letters are answered in this process."""

    async def outcomes(
        self, capsys: pytest.CaptureFixture[str], *letters: DeadLetter, broker: Broker | None = None, code: int = 0
    ) -> list[dict[str, Any]]:
        given: dict[str, Any] = {"model": "null", "max_batch_tokens": 3}
        settings = AnswerSettings(**given)
        sender = RecordSender(broker, KafkaCluster("nowhere:1"))  # type: ignore[arg-type]  # without one: a dry run
        async with open_answerer(settings, settings) as answerer:
            answers = LetterAnswers(replace(OPTIONS, as_json=True), answerer, sender)
            for one in letters:
                await answers.add(one)
            assert await answers.finish() == code
        shown = capsys.readouterr()
        self.said = " ".join(shown.err.split())
        return [json.loads(line) for line in shown.out.splitlines()]

    async def test_a_dry_run_says_what_each_would_be_answered(self, capsys: pytest.CaptureFixture[str]) -> None:
        found = await self.outcomes(
            capsys, request(1), request(2, ids=[40_000]), letter(0), request(3, ("penstock-deadline-ms", b"1")), code=1
        )
        assert [one["outcome"] for one in found] == ["answered", "failed", "skipped", "answered"]
        assert (found[0]["task"], found[0]["sequences"], found[0]["to"]) == ("embed", 1, "penstock.replies")
        assert found[1]["code"] == "bad_token_id"
        assert "Would send 2 replies to penstock.replies." in self.said
        assert "1 letter failed again: bad_token_id." in self.said
        assert "This was a dry run. Add --execute to send." in self.said

    async def test_a_reply_is_sent_with_the_key_of_a_reply_to_the_original(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        broker = Broker()
        await self.outcomes(capsys, request(1), request(9, ("penstock-replay-of", b"t-0-1")), broker=broker)
        keys = [blake2b(bytes(16) + place, digest_size=16).digest() for place in (b"t-0-1-9", b"t-0-9-9")]
        assert [record.key for record in broker.sent] == keys
        assert broker.sent[1].headers == [("kafka_correlationId", b"c"), ("penstock-replay-of", b"t-0-1")]
        reply = decode_reply(broker.sent[0].value)
        assert isinstance(reply, Reply)
        assert reply.vectors is not None

    @pytest.mark.slow
    async def test_a_reply_holds_what_the_engine_computes(self, tmp_path: Path) -> None:
        save_encoder(tmp_path, "bert")
        sequences = [np.arange(5, 5 + length, dtype=np.uint32) for length in (3, 7, 1)]
        given: dict[str, Any] = {"model": str(tmp_path), "served_name": "null", "dtype": "float32", "device": "cpu"}
        given["max_batch_tokens"] = 8
        settings = AnswerSettings(**given)
        value = encode_request(Request("null", "embed", join_tokens(sequences)))
        record = SimpleNamespace(topic="t", partition=0, offset=1, timestamp=0, key=None, value=value)
        record.headers = [("kafka_replyTopic", b"penstock.replies")]
        async with open_answerer(settings, settings) as answerer:
            reply = decode_reply((await answerer.answer(record, bytes(16), bulk=False)).value)
        batch = PackedBatch.of(sequences, [TaskOptions("embed")] * 3)
        assert isinstance(reply, Reply)
        assert reply.vectors is not None
        np.testing.assert_allclose(reply.vectors, np.stack(cpu_engine(tmp_path).run(batch).rows), atol=2e-6)

    async def test_a_reply_topic_outside_the_allow_list_gets_no_reply(self, capsys: pytest.CaptureFixture[str]) -> None:
        broker = Broker()
        (found,) = await self.outcomes(
            capsys, request(1, ("kafka_replyTopic", b"payments")), broker=broker, code=EXIT_PROBLEM
        )
        assert "outside this worker's allow-list" in found["message"]
        assert broker.sent == []

    async def test_a_result_that_is_not_finite_is_no_answer(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = NullEngine.run

        def overflow(self: NullEngine, batch: PackedBatch) -> BatchOutput:
            rows = run(self, batch).rows
            return BatchOutput([row * np.nan if 13 in batch.token_ids else row for row in rows], 0.0)

        monkeypatch.setattr(NullEngine, "run", overflow)
        broker = Broker()
        first, second = await self.outcomes(capsys, request(1, ids=[13]), request(2), broker=broker, code=EXIT_PROBLEM)
        assert (first["outcome"], first["code"], second["outcome"]) == ("failed", "backend", "answered")
        assert "NaN or infinity" in first["message"]
        assert len(broker.sent) == 1

    async def test_a_reply_that_is_too_large_once_it_is_made_fails_one_letter(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = NullEngine.run

        def many_ids(self: NullEngine, batch: PackedBatch) -> BatchOutput:
            rows = run(self, batch).rows
            return BatchOutput(
                [np.ones(2 * 200_000, np.float32) if 13 in batch.token_ids else row for row in rows], 0.0
            )

        monkeypatch.setattr(NullEngine, "run", many_ids)
        letters = [request(1, ids=[13], task="embed_sparse"), request(2, task="embed_sparse")]
        first, second = await self.outcomes(capsys, *letters, code=EXIT_PROBLEM)
        assert (first["outcome"], first["code"], second["outcome"]) == ("failed", "invalid_request", "answered")
        assert "would exceed 1,000,000 bytes" in first["message"]

    async def test_an_engine_that_fails_fails_one_letter(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = NullEngine.run

        def fail(self: NullEngine, batch: PackedBatch) -> BatchOutput:
            if 13 in batch.token_ids:
                raise ValueError("cannot compute this")
            return run(self, batch)

        monkeypatch.setattr(NullEngine, "run", fail)
        first, second = await self.outcomes(capsys, request(1, ids=[13]), request(2), code=EXIT_PROBLEM)
        assert (first["code"], second["outcome"]) == ("backend", "answered")
        assert "cannot compute this" in first["message"]


def shared_letter(*codes: str) -> SimpleNamespace:
    """A letter of a record for each code, of offsets from 7 on."""
    records = [
        LetterRecord(7 + i, 1000 + i, None, b"value %d" % i, [("x", b"%d" % i)], code, f"why {i}", "builtins.E", 1)
        for i, code in enumerate(codes)
    ]
    headers = [
        ("penstock-error-code", ",".join(dict.fromkeys(codes)).encode()),
        ("__dlq.errors.topic", b"t"),
        ("__dlq.errors.partition", b"3"),
        ("__dlq.errors.offset", b"7"),
        ("penstock-last-offset", b"%d" % (6 + len(codes))),
        ("penstock-records", b"%d" % len(codes)),
    ]
    value = encode_letter_records(records)
    return SimpleNamespace(
        topic="t.dead-letter", partition=0, offset=1, key=b"k", value=value, timestamp=5, headers=headers
    )


async def test_records_that_share_a_letter_are_listed_in_a_line_and_taken_one_by_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    letters = list(DeadLetter.all_of(shared_letter("backend", "too_long", "backend"), bulk=False))
    assert [one.position for one in letters] == [("t", 3, 7 + i) for i in range(3)]
    assert [one.code for one in letters] == ["backend", "too_long", "backend"]
    assert {one.id for one in letters} == {"0:1"}
    assert not any(one.obstacle for one in letters)
    print_letters(letters)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "t-3-7 and 1 more" in lines[1]
    selection = Selection("backend")
    broker = Broker()
    sender = RecordSender(broker, KafkaCluster("nowhere:1"))  # type: ignore[arg-type]  # the broker stands for the outbox
    replayer = Replayer(OPTIONS, sender)
    for one in filter(selection.holds, letters):
        assert one.position is not None
        await replayer.offer(one.position, one.original_key, one.record.value, one.original_headers, "there")
    assert [(record.value, dict(record.headers)["penstock-replay-of"]) for record in broker.sent] == [
        (b"value 0", b"t-3-7"),
        (b"value 2", b"t-3-9"),
    ]


def test_a_header_of_a_client_makes_no_letter_a_shared_one() -> None:
    plain = letter(0, ("penstock-records", b"2"), ("penstock-error-code", b"backend"))
    assert [one.record for one in DeadLetter.all_of(plain.record, bulk=False)] == [plain.record]
    assert "shared" not in plain.obstacle


@pytest.mark.parametrize("value", [None, b"", b"x", zlib.compress(b"\xc0"), zlib.compress(b"\x91\x91\x01")])
def test_a_shared_letter_that_cannot_be_read_is_one_with_an_obstacle(value: bytes | None) -> None:
    spoilt = shared_letter("backend")
    spoilt.value = value
    (one,) = DeadLetter.all_of(spoilt, bulk=False)
    assert one.obstacle == "the records that it stands for cannot be read"
