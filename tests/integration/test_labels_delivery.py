"""Requests with labels are delivered as others are: once with `exactly_once`, and a few at a time in an overload."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.ops.kafka import KafkaBroker
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.wire.codec import decode_reply, encode_request
from penstock.producer.wire.messages import ErrorReply, Options, Reply, Request
from penstock.worker.kafka.fetching.group import evict
from tests.integration.conftest import StartWorker, Unique, only_member, reader_of
from tests.integration.test_exactly_once import PARTITIONS, Pipeline, number, pipeline
from tests.integration.test_zero_shot import LABELS, assert_same, save_inference_model, zero_shot

CLASSES = ("entailment", "neutral", "contradiction")
GATED = [str(Path(__file__).with_name("gated_worker.py"))]
# Eight kilobytes a record: eight or nine are one slice of the fetch buffer. One has more pairs than may be in flight,
# which is eight sequences for each of MAX_IN_FLIGHT, and all together have fewer texts.
RECORDS, TEXTS, MAX_IN_FLIGHT = 12, 4, 8
MANY_LABELS = [f"{label} {letter}" for label in LABELS[:2] for letter in "abcdefghij"]


async def send(line: Pipeline, requests: Sequence[Request], partitions: int) -> None:
    for index, request in enumerate(requests):
        headers = [("kafka_correlationId", b"%d" % index), ("kafka_replyTopic", line.reply_topic.encode())]
        value = encode_request(request)
        await line.producer.send(line.topic, value, partition=index % partitions, headers=headers)
    line.num_sent = len(requests)
    await line.producer.flush()


async def answers(line: Pipeline) -> list[Reply | ErrorReply]:
    """The last answer to each request, once all have one."""
    found: dict[int, Reply | ErrorReply] = {}
    async with (
        reader_of(line.broker, line.reply_topic, isolation_level="read_committed") as reader,
        asyncio.timeout(300),
    ):
        while len(found) < line.num_sent:
            record = await reader.getone()
            found[number(record)] = decode_reply(record.value)
    return [found[index] for index in range(line.num_sent)]


def labelled(line: Pipeline, texts: Sequence[str], labels: Sequence[str]) -> Request:
    return Request(
        line.model, "classify", text=tuple(texts), options=Options(labels=tuple(labels), top_k=0, truncate=True)
    )


async def test_each_is_answered_once_though_a_member_dies_with_answers_that_are_not_committed(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, tmp_path: Path
) -> None:
    """Among them one at fault, whose error reply and dead letter are there once too."""
    save_inference_model(tmp_path, "bert", CLASSES)
    texts = [f"where is my card {letter}" for letter in "abcdefghij"]
    async with pipeline(kafka, unique, "labels") as line:
        settings: dict[str, Any] = {"model": tmp_path, "served_name": line.model, "dtype": "float32"}
        settings |= {"partitions": PARTITIONS, "delivery": "exactly_once", "drain_s": 5}
        first = await start_worker(kafka, **settings, transaction_window_ms=3000).ready()
        member = await only_member(kafka, line.group)
        wrong = labelled(line, texts[:1], ["card", "card"])
        await send(line, [*[labelled(line, [text], LABELS) for text in texts], wrong], PARTITIONS)
        await first.event("batch_done")
        first.process.kill()
        await evict(KafkaCluster(kafka.bootstrap_servers), line.group, member)
        await start_worker(kafka, **settings).ready()
        await line.assert_exactly_once()
        assert await line.answers("read_committed", f"{line.topic}.dead-letter", until=1) == {len(texts): 1}
        *replies, refusal = await answers(line)
    assert isinstance(refusal, ErrorReply)
    reference = await asyncio.to_thread(zero_shot, tmp_path)
    assert_same([row for reply in replies for row in rows_of(reply)], reference(texts, LABELS))


async def test_an_overload_is_admitted_a_few_records_at_a_time_and_none_is_lost(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, tmp_path: Path
) -> None:
    """Back-pressure counts the pairs of a text and a label, of which a record has many more than texts."""
    save_inference_model(tmp_path, "bert", CLASSES)
    texts = [[f"card {record} {row} " + "where the card " * 130 for row in range(TEXTS)] for record in range(RECORDS)]
    gate = tmp_path / "gate"
    async with pipeline(kafka, unique, "overload") as line:
        settings: dict[str, Any] = {"model": tmp_path, "served_name": line.model, "dtype": "float32"}
        settings |= {"max_in_flight": MAX_IN_FLIGHT, "lanes": 1, "partitions": PARTITIONS}
        await send(line, [labelled(line, rows, MANY_LABELS) for rows in texts], partitions=1)
        gated = start_worker(kafka, GATED, **settings, drain_s=0.1, echo_gate=gate)
        reached = Path(f"{gate}.reached")
        await gated.until(lambda: {} if reached.exists() else None, "batch", 300)
        gated.process.terminate()
        stopping = await gated.event("stopping")
        gate.touch()
        assert await gated.exit_code() == 0
        assert 0 < stopping["unfinished"] <= 9
        start_worker(kafka, **settings)
        replies = await answers(line)
    reference = await asyncio.to_thread(zero_shot, tmp_path)
    found = [rows_of(reply) for reply in replies]
    assert {len(rows) for rows in found} == {TEXTS}
    assert_same([rows[-1] for rows in found[::3]], reference([rows[-1] for rows in texts[::3]], MANY_LABELS))


def rows_of(reply: Reply | ErrorReply) -> Sequence[Any]:
    assert isinstance(reply, Reply), reply
    return reply.rows("classify")
