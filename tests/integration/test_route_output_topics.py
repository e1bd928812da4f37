"""Output topics of routes that are deleted while workers run."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka.admin import NewTopic

from penstock.ops.kafka import KafkaBroker
from penstock.producer.wire.topics import dead_letter_topic
from tests.engine.helpers import save_sentence_transformer
from tests.integration.conftest import CountRecords, StartWorker, open_admin
from tests.integration.test_routes import WORDS, Sent, make_topic, read, send


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    """A broker that creates no topic on first use."""
    with KafkaBroker(config={"auto.create.topics.enable": "false", "broker.session.timeout.ms": "60000"}) as own:
        yield own


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_an_output_topic_that_is_deleted_holds_its_route_up_until_it_is_there_again(
    broker: KafkaBroker, start_worker: StartWorker, tmp_path: Path, count_records: CountRecords, delivery: str
) -> None:
    save_sentence_transformer(tmp_path, WORDS)
    source, output = await make_topic(broker, f"orders-{delivery}", 1), await make_topic(broker, f"out-{delivery}", 1)
    values = [json.dumps({"n": n, "text": "w1 " * (30 - n)}).encode() for n in range(20)]
    await send(broker, source, [Sent(b"k", values[0])])
    worker = start_worker(
        broker,
        model=tmp_path / "model",
        served_name=f"routed-{delivery}",
        delivery=delivery,
        input_topic=source,
        output_topic=output,
        text="text",
    )
    await read(worker, broker, output, 1)
    async with open_admin(broker) as admin:
        await admin.delete_topics([output])
        await send(broker, source, [Sent(b"k", value) for value in values[1:10]])
        away = await worker.event("output_topic_away")
        assert (away["topic"], away["level"]) == (output, "error")
        await send(broker, source, [Sent(b"k", value) for value in values[10:]])
        await admin.create_topics([NewTopic(output, 1, 1)])
    found = await read(worker, broker, output, 19, isolation_level="read_committed")
    assert [json.loads(record.value)["n"] for record in found] == list(range(1, 20))
    await worker.event("output_topic_back")
    await worker.stop()
    assert len(worker.events("output_topic_away")) == 1
    assert await count_records(broker, dead_letter_topic(source)) == 0
