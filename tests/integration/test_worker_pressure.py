"""Back-pressure by sequences: a few records of many sequences fill a worker like many records of one."""

import asyncio

from penstock.ops.kafka import KafkaBroker
from penstock.producer import Client
from penstock.producer.wire.messages import Request, join_tokens
from tests.integration.conftest import StartWorker, Unique

RECORDS, ROWS = 24, 1000  # eight bytes a sequence: eight or nine records are one slice of the fetch buffer


async def test_records_of_many_sequences_are_admitted_a_few_at_a_time_and_none_is_lost(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker
) -> None:
    model = unique("rows")
    settings = {"served_name": model, "max_in_flight": 64, "max_batch_sequences": 100, "lanes": 1}
    slow = start_worker(kafka, **settings, echo_batch_s=0.2, drain_s=0.1)
    ids = [[[1 + record, 1 + row] for row in range(ROWS)] for record in range(RECORDS)]
    async with Client(bootstrap_servers=kafka.bootstrap_servers, model=model, timeout_s=300) as client:
        await slow.ready()
        asked = [asyncio.create_task(client.request(Request(model, "embed", join_tokens(rows)))) for rows in ids]
        await slow.event("batch_done")
        await slow.stop()
        [stopping] = slow.events("stopping")
        assert 0 < stopping["unfinished"] <= 9
        start_worker(kafka, **settings)
        answers = await asyncio.gather(*asked)
    for rows, answer in zip(ids, answers, strict=True):
        assert answer.vectors is not None
        assert answer.vectors[:, 2].tolist() == [last for _, last in rows]
