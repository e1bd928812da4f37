"""Calls that share records, through a real broker and a real worker: each gets its own answer, in far fewer records."""

import asyncio
from typing import Any

import numpy as np

from penstock.ops.kafka import KafkaBroker
from penstock.producer import BackendError, BadTokenId, Client, TooLong
from penstock.producer.wire.topics import request_topic
from tests.integration.conftest import CountRecords, StartWorker, Unique

NUM_CALLS = 3000
FAULTS = {7: ([30_000, 7], BackendError), 500: ([5, 30_522], BadTokenId), 2222: ([7] * 513, TooLong)}


async def test_thousands_of_single_calls_share_records_and_each_gets_its_own(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, count_records: CountRecords
) -> None:
    model = unique("batching")
    worker = start_worker(kafka, served_name=model)
    async with Client(bootstrap_servers=kafka.bootstrap_servers, model=model, timeout_s=300) as client:
        await worker.ready()

        async def ask(n: int) -> Any:
            ids, _ = FAULTS.get(n, ([n + 1, 3], None))
            return await client.embed(ids=[ids])

        results = await asyncio.gather(*[ask(n) for n in range(NUM_CALLS)], return_exceptions=True)
    sent = await count_records(kafka, request_topic(model))
    for n, result in enumerate(results):
        if n in FAULTS:
            assert type(result) is FAULTS[n][1], result
        else:
            np.testing.assert_array_equal(result, [[2, n + 1, 3, n + 4]])
    assert sent <= NUM_CALLS / 64 + 1 + len(FAULTS)


async def test_sequences_whose_reply_is_too_large_for_the_worker_come_in_several_records(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker
) -> None:
    model = unique("large")
    worker = start_worker(kafka, served_name=model, max_reply_bytes=1024, max_sequences=1024)  # 64 rows of 4 floats
    async with Client(
        bootstrap_servers=kafka.bootstrap_servers, model=model, timeout_s=300, sequences_per_record=256
    ) as client:
        await worker.ready()
        vectors = await client.embed(ids=[[n, 1] for n in range(1000)])
    assert vectors[:, 1].tolist() == list(range(1000))
