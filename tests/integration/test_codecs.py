"""Requests in every compression of Kafka: the worker answers them all."""

import asyncio
from typing import Any

import msgpack
from aiokafka import AIOKafkaProducer

from penstock.ops.kafka import KafkaBroker
from penstock.producer.wire.codec import encode_request
from penstock.producer.wire.headers import CORRELATION_ID, REPLY_TOPIC
from penstock.producer.wire.messages import Request, join_tokens
from penstock.producer.wire.topics import request_topic
from tests.integration.conftest import StartWorker, Unique, reader_of

CODECS = (None, "gzip", "snappy", "lz4", "zstd")


async def test_records_of_every_compression_are_answered(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker
) -> None:
    model, replies = unique("codecs"), unique("penstock.replies.")
    worker = start_worker(kafka, served_name=model)
    await worker.ready()
    for number, codec in enumerate(CODECS):
        async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers, compression_type=codec) as producer:
            value = encode_request(Request(model, "embed", join_tokens([[number + 1] * 400])))
            headers = [(REPLY_TOPIC, replies.encode()), (CORRELATION_ID, str(codec).encode())]
            await producer.send_and_wait(request_topic(model), value, partition=0, headers=headers)
    answers: dict[bytes, Any] = {}
    consumer = reader_of(kafka, replies)
    async with consumer, asyncio.timeout(300):
        while len(answers) < len(CODECS):
            record = await consumer.getone()
            answers[dict(record.headers)[CORRELATION_ID]] = msgpack.unpackb(record.value)
    assert answers.keys() == {str(codec).encode() for codec in CODECS}
    assert not [codec for codec, answer in answers.items() if "error" in answer]
