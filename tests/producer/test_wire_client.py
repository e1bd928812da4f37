"""The client printed in WIRE.md knows only that page; it must be understood, and must understand the answer."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from penstock.ops.kafka import MockBroker
from penstock.producer.errors import BackendError, PenstockError, TooLong
from penstock.producer.wire import codec as wire
from penstock.producer.wire.codec import decode_request, encode_error, encode_reply
from penstock.producer.wire.headers import parse_address, parse_deadline_ms
from penstock.producer.wire.messages import Reply, Request

VECTORS = np.array([[0.5, -1.0, 2.0], [1.0, 0.0, 0.25]], dtype=np.float32)


@pytest.fixture
def broker() -> Iterator[MockBroker]:
    with MockBroker() as running:
        yield running


def client_of_the_page() -> dict[str, Any]:
    page = (Path(wire.__file__).parent / "WIRE.md").read_text()
    names: dict[str, Any] = {"__name__": "page"}
    exec(page.split("```python")[1].split("```")[0], names)
    return names


async def answer_one(servers: str, answer: bytes) -> tuple[Request, dict[str, Any]]:
    """A worker in miniature: read one request with our decoder, send `answer` to where it asks for."""
    async with (
        AIOKafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest", metadata_max_age_ms=500) as consumer,
        AIOKafkaProducer(bootstrap_servers=servers) as producer,
    ):
        await producer.partitions_for("penstock.requests.m")  # creates the topic
        consumer.assign([TopicPartition("penstock.requests.m", partition) for partition in range(4)])
        record = await consumer.getone()
        headers = dict(record.headers)
        address = parse_address(headers)
        stray = encode_error(BackendError("of another client")), [("kafka_correlationId", b"of another client")]
        await producer.send_and_wait(address.topic, stray[0], partition=address.partition, headers=stray[1])
        await producer.send_and_wait(address.topic, answer, partition=address.partition, headers=address.headers())
        return decode_request(record.value), {
            "address": address,
            "deadline_ms": parse_deadline_ms(headers),
        }


async def call(servers: str, answer: bytes) -> tuple[Any, Request, dict[str, Any]]:
    embed = client_of_the_page()["embed"]
    numbers, (request, rest) = await asyncio.gather(
        embed(servers, "m", ["hello", "you"]), answer_one(servers, answer), return_exceptions=True
    )
    return numbers, request, rest


async def test_it_asks_and_reads_vectors(broker: MockBroker) -> None:
    numbers, request, rest = await call(broker.bootstrap_servers, encode_reply(Reply("m", "r", vectors=VECTORS)))
    assert request == Request("m", "embed", text=("hello", "you"))
    assert rest["address"].topic == "penstock.replies"
    assert 0 < rest["deadline_ms"] / 1000 - time.time() <= 30
    assert [row.tolist() for row in numbers] == VECTORS.tolist()


async def test_it_raises_what_it_is_told(broker: MockBroker) -> None:
    error: PenstockError = TooLong("Given: 600")
    raised, _, _ = await call(broker.bootstrap_servers, encode_error(error))
    assert isinstance(raised, RuntimeError)
    assert str(raised) == "too_long: Given: 600"
