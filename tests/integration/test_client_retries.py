"""A record that an overloaded worker rejects, through a real broker: it is sent at most four times, as a whole."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from penstock.ops.kafka import KafkaBroker
from penstock.producer import Client, Expired, Overloaded
from penstock.producer.wire.topics import request_topic

BATCH_S = 0.3  # how long every batch takes
NUM_SEQUENCES = 64


def ids(first: int) -> list[list[int]]:
    """Sequences of the length with which so slow an engine is calibrated: its one timing is then a good prediction."""
    return [[n, 2] * 4 for n in range(first, first + NUM_SEQUENCES)]


async def test_a_rejected_record_is_not_multiplied(
    kafka: KafkaBroker,
    unique: Callable[[str], str],
    start_worker: Callable[..., Any],
    count_records: Callable[..., Awaitable[int]],
) -> None:
    """Behind 19 s of work, 64 sequences that must be answered in 3 s."""
    model = unique("rejected")
    worker = start_worker(kafka, served_name=model, echo_batch_s=BATCH_S, max_batch_sequences=1, lanes=1)
    async with Client(bootstrap_servers=kafka.bootstrap_servers, model=model) as client:
        await worker.ready()
        await client.embed(ids=[[1, 2] * 4])  # topics and leaders known
        backlog = asyncio.create_task(client.map("embed", ids=ids(1000)))
        while (before := await count_records(kafka, request_topic(model))) < 2:
            pass
        results = await client.map("embed", ids=ids(1), timeout_s=3)
        sent = await count_records(kafka, request_topic(model)) - before
        backlog.cancel()
    assert {type(result) for result in results} in ({Overloaded}, {Expired})
    assert 1 <= sent <= 4
