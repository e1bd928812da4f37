"""A record batch that a broker's disk has spoilt: the worker skips it to a dead letter, and its partition goes on."""

import asyncio
from collections.abc import Iterator

import msgpack
import pytest
from aiokafka import AIOKafkaProducer

from penstock.ops.kafka import KafkaBroker
from penstock.producer.wire.codec import encode_request
from penstock.producer.wire.headers import CORRELATION_ID, REPLY_TOPIC
from penstock.producer.wire.messages import Request, join_tokens
from penstock.producer.wire.topics import dead_letter_topic, request_topic
from tests.integration.conftest import StartWorker, reader_of

MODEL, REPLIES = "spoilt", "penstock.replies.spoilt"
MARK = b"to be spoilt"


@pytest.fixture
def broker() -> Iterator[KafkaBroker]:
    """A broker for one test."""
    with KafkaBroker() as own:
        yield own


async def test_a_batch_that_the_disk_has_spoilt_is_skipped_to_a_dead_letter(
    broker: KafkaBroker, start_worker: StartWorker
) -> None:
    topic = request_topic(MODEL)
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number in range(3):
            value = encode_request(Request(MODEL, "embed", join_tokens([[number + 1, 5]])))
            headers = [(REPLY_TOPIC, REPLIES.encode()), (CORRELATION_ID, b"%d" % number)]
            headers += [("x", MARK)] if number == 1 else []
            await producer.send_and_wait(topic, value, partition=0, headers=headers)
    await asyncio.to_thread(broker.stop)
    (segment,) = broker._data_dir.glob(f"data/{topic}-0/*.log")
    before = segment.read_bytes()
    assert before.count(MARK) == 1
    segment.write_bytes(before.replace(MARK, MARK.upper()))
    await asyncio.to_thread(broker.start)
    worker = start_worker(broker, served_name=MODEL, partitions=1)
    topics = (REPLIES, dead_letter_topic(topic))
    consumer = reader_of(broker, *topics)
    async with consumer, asyncio.timeout(300):
        records = [await consumer.getone() for _ in range(3)]
    answers = {dict(record.headers)[CORRELATION_ID]: record.value for record in records if record.topic == REPLIES}
    assert answers.keys() == {b"0", b"2"}
    assert not [value for value in answers.values() if "error" in msgpack.unpackb(value)]
    (letter,) = [record for record in records if record.topic != REPLIES]
    notes = dict(letter.headers)
    assert notes["penstock-source"] == f"{topic}-0-1".encode()
    assert b"offsets 1 to 1 cannot be read: its checksum is wrong" in notes["penstock-error-message"]
    assert MARK.upper() in letter.value
    assert not worker.events("poll_failed")
