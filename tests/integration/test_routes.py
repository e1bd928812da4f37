"""Routes: records of one topic come out on another, enriched. By plain aiokafka at both ends, as users have it."""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import NewTopic

from penstock.ops.kafka import KafkaBroker
from penstock.producer.wire.headers import CANCEL, CORRELATION_ID, DEADLINE_MS, REPLY_TOPIC
from tests.engine.helpers import save_sentence_transformer
from tests.integration.conftest import StartWorker, Unique, WorkerProcess, letters_of, open_admin, reader_of

WORDS = [f"w{i}" for i in range(30)]
PARTITIONS = 4
TIME_MS = int(time.time() * 1e3) - 86_400_000  # yesterday: a broker deletes what is older than a week


class Sent(NamedTuple):
    """A record of the input topic."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("routed")
    save_sentence_transformer(directory, WORDS)
    return directory / "model"


async def make_topic(broker: KafkaBroker, name: str, partitions: int = PARTITIONS) -> str:
    async with open_admin(broker) as admin:
        await admin.create_topics([NewTopic(name, partitions, 1)])
    return name


async def send(broker: KafkaBroker, topic: str, records: Sequence[Sent], partition: int | None = None) -> None:
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, enable_idempotence=True) as producer:
        for key, value, headers in records:
            await producer.send(topic, value, key, partition, TIME_MS, list(headers))
        await producer.flush()


async def read(worker: WorkerProcess, broker: KafkaBroker, topic: str, count: int, **options: Any) -> list[Any]:
    """The first records of a topic. There are no more of them."""
    found: list[Any] = []
    async with reader_of(broker, topic, **options) as reader, asyncio.timeout(300):
        while len(found) < count:
            assert worker.process.poll() is None, worker.tail()
            for records in (await reader.getmany(timeout_ms=500)).values():
                found += records
        for records in (await reader.getmany(timeout_ms=500)).values():
            found += records
    assert len(found) == count
    return found


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_records_come_out_with_their_vectors_and_are_otherwise_as_they_were(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, model: Path, delivery: str
) -> None:
    from sentence_transformers import SentenceTransformer

    source, output = await make_topic(kafka, unique("orders")), unique("enriched")
    texts = [f"w{n} w{n + 1}" for n in range(20)]
    values = [b'{"id": %d, "price": 1.10,  "text": "%b" }' % (n, text.encode()) for n, text in enumerate(texts)]
    headers = [("trace", b"\x00\xff"), ("trace", b"2")]
    await send(kafka, source, [Sent(b"k%d" % n, value, headers) for n, value in enumerate(values)])
    worker = start_worker(
        kafka,
        model=model,
        dtype="float32",
        served_name=unique("routed"),
        delivery=delivery,
        input_topic=source,
        output_topic=output,
        text="text",
        result_field="vector",
    )
    enriched = {
        record.key: record for record in await read(worker, kafka, output, 20, isolation_level="read_committed")
    }
    await worker.stop()
    reference: Any = SentenceTransformer(str(model), device="cpu")
    for n, vector in enumerate(reference.encode(texts)):
        record = enriched[b"k%d" % n]
        assert record.value.startswith(values[n].rstrip(b" }"))
        np.testing.assert_allclose(json.loads(record.value)["vector"], vector, atol=1e-5)
        assert record.timestamp == TIME_MS
        assert list(record.headers[:2]) == headers
        assert {name for name, _ in record.headers[2:]} == {
            "penstock-model",
            "penstock-revision",
            "penstock-finished-ms",
            "penstock-source",
        }


async def test_what_has_no_text_passes_and_what_cannot_be_read_becomes_a_dead_letter(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, model: Path
) -> None:
    source, output = await make_topic(kafka, unique("orders")), unique("enriched")
    passed = [Sent(b"a", None), Sent(b"b", b'{"after": null}'), Sent(b"c", b'{"after": {"text": null}}')]
    wrong = [
        Sent(b"d", b"{"),
        Sent(b"e", b'{"after": {"text": 3}}'),
        Sent(b"f", b"\xff\xfe"),
        Sent(b"g", b'{"after": {"text": "%b"}}' % (b"w1 " * 100_000)),
        Sent(b"h", b""),
    ]
    await send(kafka, source, [*passed, *wrong])
    worker = start_worker(
        kafka,
        model=model,
        served_name=unique("routed"),
        input_topic=source,
        output_topic=output,
        text="/after/text",
        result_field="/after/vector",
    )
    records = {record.key: record.value for record in await read(worker, kafka, output, 3)}
    assert records == {one.key: one.value for one in passed}
    letters = await letters_of(kafka, source, 5)
    assert {letter.record.key: letter.code for letter in letters} == {
        b"d": "invalid_request",
        b"e": "invalid_request",
        b"f": "invalid_request",
        b"g": "too_long",
        b"h": "invalid_request",
    }
    await worker.stop()


async def test_records_of_a_key_keep_their_order_whatever_their_lengths(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, model: Path, tmp_path: Path
) -> None:
    source, output = await make_topic(kafka, unique("orders")), unique("enriched")
    records = []
    for n in range(300):  # long ones, short ones, ones that the cache knows, some without a text, some that fail
        texts = ["w1 " * 30, "w2", "w3 w4", None, 7]
        document = {"n": n, "text": texts[n * 7 % 5]}
        records.append(Sent(b"key%d" % (n % 3), json.dumps(document).encode()))
    await send(kafka, source, records)
    worker = start_worker(
        kafka,
        model=model,
        served_name=unique("routed"),
        cache_path=tmp_path / "cache.sqlite",
        input_topic=source,
        output_topic=output,
        text="text",
    )
    expected = [one for one in records if json.loads(one.value or b"")["text"] != 7]
    found = await read(worker, kafka, output, len(expected))
    await worker.stop()
    for key in (b"key0", b"key1", b"key2"):
        numbers = [json.loads(record.value)["n"] for record in found if record.key == key]
        assert numbers == [json.loads(one.value or b"")["n"] for one in expected if one.key == key]


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_a_record_that_the_output_topic_refuses_becomes_a_dead_letter_and_holds_up_no_other(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, model: Path, delivery: str
) -> None:
    source, output = await make_topic(kafka, unique("orders"), 1), unique("enriched")
    config = {"cleanup.policy": "compact", "message.timestamp.before.max.ms": str(24 * 3600 * 1000)}
    async with open_admin(kafka) as admin:
        await admin.create_topics([NewTopic(output, 1, 1, topic_configs=config)])
    now_ms = int(time.time() * 1000)
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        for key, time_ms in [(b"a", now_ms), (None, now_ms), (b"b", TIME_MS), (b"c", now_ms)]:
            await producer.send(source, b'{"text": "w1"}', key, 0, time_ms)
        await producer.flush()
    worker = start_worker(
        kafka,
        model=model,
        served_name=unique("routed"),
        delivery=delivery,
        input_topic=source,
        output_topic=output,
        text="text",
    )
    found = await read(worker, kafka, output, 2, isolation_level="read_committed")
    assert [record.key for record in found] == [b"a", b"c"]
    letters = await letters_of(kafka, source, 2)
    assert [letter.code for letter in letters] == ["invalid_request"] * 2
    await worker.stop()


async def test_records_of_an_aborted_transaction_are_not_enriched(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, model: Path
) -> None:
    source, output = await make_topic(kafka, unique("orders"), 1), unique("enriched")
    writer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers, transactional_id=unique("connector"))
    async with writer as producer:
        for key in (b"aborted", b"kept"):
            await producer.begin_transaction()
            await producer.send(source, b'{"text": "w1"}', key)
            await producer.flush()
            await (producer.abort_transaction() if key == b"aborted" else producer.commit_transaction())
    worker = start_worker(
        kafka, model=model, served_name=unique("routed"), input_topic=source, output_topic=output, text="text"
    )
    assert [record.key for record in await read(worker, kafka, output, 1)] == [b"kept"]
    await worker.stop()


async def test_a_dead_letter_that_is_replayed_comes_out_as_its_record_would_have(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, model: Path
) -> None:
    source, output = await make_topic(kafka, unique("orders")), unique("enriched")
    keys = [None, b"", b"k"]
    for partition, key in enumerate(keys):  # each has a letter of its own, as they do not follow one another
        await send(kafka, source, [Sent(key, b'{"text": "w1"}', [("a", b"1")])], partition)
    worker = start_worker(
        kafka,
        model=model,
        served_name=unique("routed"),
        input_topic=source,
        output_topic=output,
        text="text",
        max_age_ms=3_600_000,
    )
    assert {letter.code for letter in await letters_of(kafka, source, 3)} == {"expired"}
    replay = ["-c", "from penstock.ops.cli.main import main; main()", "dlq", "replay", "--topic", source, "--execute"]
    servers = ["--bootstrap-servers", kafka.bootstrap_servers]
    process = await asyncio.create_subprocess_exec(sys.executable, *replay, *servers)
    assert await process.wait() == 0
    found = await read(worker, kafka, output, 3)
    assert sorted([record.key for record in found], key=keys.index) == keys
    assert all(("a", b"1") in record.headers for record in found)
    await worker.stop()


async def test_headers_of_a_request_mean_nothing_on_a_route_whatever_the_size_of_the_record(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, model: Path
) -> None:
    source, output = await make_topic(kafka, unique("orders")), unique("enriched")
    headers = [(REPLY_TOPIC, b"penstock.replies"), (CORRELATION_ID, b"1"), (DEADLINE_MS, b"1"), (CANCEL, b"1")]
    values = [b'{"text": "w1", "more": "%b"}' % (b"x" * size) for size in (1, 100_000)]
    await send(kafka, source, [Sent(b"k", value, headers) for value in values])
    worker = start_worker(
        kafka, model=model, served_name=unique("routed"), input_topic=source, output_topic=output, text="text"
    )
    for record, value in zip(await read(worker, kafka, output, 2), values, strict=True):
        assert record.value.startswith(value[:-1])
        assert set(headers) <= set(record.headers)
    await worker.stop()
