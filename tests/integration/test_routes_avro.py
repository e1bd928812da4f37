"""Routes in Avro, with a real schema registry. Written and read by confluent-kafka's own serializers."""

import datetime
import json
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from penstock.ops.kafka import KafkaBroker
from tests.engine.helpers import save_sentence_transformer
from tests.integration.conftest import StartWorker, Unique, letters_of
from tests.integration.schema_registry import open_door
from tests.integration.test_routes import WORDS, Sent, make_topic, read, send

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "n", "type": "long"},
        {"name": "text", "type": ["null", "string"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}},
        {"name": "any", "type": ["int", "double", "string", "Kind"]},
        {"name": "raw", "type": {"type": "map", "values": "bytes"}},
    ],
}


# As Kafka Connect's AvroConverter writes Debezium's events: `after` refers to the type that `before` defines.
ROW = {
    "type": "record",
    "name": "Value",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "body", "type": ["null", "string"], "default": None},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
    ],
    "connect.name": "shop.public.articles.Value",
}
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "namespace": "shop.public.articles",
    "fields": [
        {"name": "before", "type": ["null", ROW], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "op", "type": "string"},
    ],
    "connect.version": 2,
    "connect.name": "shop.public.articles.Envelope",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("routed")
    save_sentence_transformer(directory, WORDS)
    return directory / "model"


class Orders:
    """A user's producer and consumer of records with a registry."""

    def __init__(self, client: SchemaRegistryClient, topic: str, output: str, schema: dict[str, Any] = ORDER) -> None:
        self.client = client
        self._write = AvroSerializer(self.client, json.dumps(schema))
        self._read = AvroDeserializer(self.client)
        self._topic, self._output = topic, output

    def written(self, **values: Any) -> bytes:
        value: bytes | None = self._write(values, SerializationContext(self._topic, MessageField.VALUE))
        assert value is not None
        return value

    def read(self, value: bytes) -> Any:
        return self._read(value, SerializationContext(self._output, MessageField.VALUE))


def order(n: int, text: str | None) -> dict[str, Any]:
    return {
        "n": 2**60 + n,
        "text": text,
        "price": Decimal("1234567890.10"),
        "at": datetime.datetime(2024, 2, 29, 1, 2, 3, 456789, tzinfo=datetime.UTC),
        "kind": "OLD",
        "hash": b"\x00\xff\x01\x02",
        "any": 0.1,
        "raw": {"a": b"\xff\x00"},
    }


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_records_come_out_with_their_vectors_and_are_otherwise_as_they_were(
    kafka: KafkaBroker,
    registry_url: str,
    registry: SchemaRegistryClient,
    unique: Unique,
    start_worker: StartWorker,
    model: Path,
    delivery: str,
) -> None:
    from sentence_transformers import SentenceTransformer

    source, output = await make_topic(kafka, unique("orders")), unique("enriched")
    orders, texts = Orders(registry, source, output), [f"w{n} w{n + 1}" for n in range(20)]
    values = [orders.written(**order(n, text)) for n, text in enumerate(texts)]
    without = orders.written(**order(20, None))
    await send(
        kafka, source, [Sent(b"%d" % n, value) for n, value in enumerate([*values, without])] + [Sent(b"-", None)]
    )
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
        record_format="avro",
        schema_registry_url=registry_url,
    )
    found = await read(worker, kafka, output, 22, isolation_level="read_committed")
    await worker.stop()
    enriched = {record.key: record.value for record in found}
    assert enriched[b"-"] is None
    assert enriched[b"20"] == without
    reference: Any = SentenceTransformer(str(model), device="cpu")
    for n, vector in enumerate(reference.encode(texts)):
        value = enriched[b"%d" % n]
        assert value[5:].startswith(values[n][5:])
        document = orders.read(value)
        np.testing.assert_allclose(document.pop("vector"), vector, atol=1e-5)
        assert document == order(n, texts[n])
    (schema_id,) = {struct.unpack(">I", enriched[b"%d" % n][1:5])[0] for n in range(20)}
    assert orders.client.get_latest_version(f"{output}-value").schema_id == schema_id


async def test_changes_of_a_table_get_the_result_of_the_row_after_them(
    kafka: KafkaBroker,
    registry_url: str,
    registry: SchemaRegistryClient,
    unique: Unique,
    start_worker: StartWorker,
    model: Path,
) -> None:
    source, output = await make_topic(kafka, unique("articles")), unique("embedded")
    changes = Orders(registry, source, output, ENVELOPE)
    first, second = {"id": 1, "body": "w1", "kind": "NEW"}, {"id": 1, "body": "w2", "kind": "OLD"}
    insert, update = {"before": None, "after": first, "op": "c"}, {"before": first, "after": second, "op": "u"}
    delete = {"before": second, "after": None, "op": "d"}
    values = [changes.written(**one) for one in (insert, update, delete)]
    await send(kafka, source, [Sent(b"1", value) for value in [*values, None]])
    worker = start_worker(
        kafka,
        model=model,
        served_name=unique("routed"),
        input_topic=source,
        output_topic=output,
        text="/after/body",
        result_field="/after/embedding",
        record_format="avro",
        schema_registry_url=registry_url,
    )
    found = [record.value for record in await read(worker, kafka, output, 4)]
    await worker.stop()
    assert found[2:] == [values[2], None]
    for value, change in zip(found, (insert, update), strict=False):
        document = changes.read(value)
        assert len(document["after"].pop("embedding")) > 1
        assert document == change


async def test_avro_comes_out_as_json(
    kafka: KafkaBroker,
    registry_url: str,
    registry: SchemaRegistryClient,
    unique: Unique,
    start_worker: StartWorker,
    model: Path,
) -> None:
    source, output = await make_topic(kafka, unique("orders")), unique("enriched")
    orders = Orders(registry, source, output)
    await send(
        kafka, source, [Sent(b"%d" % n, orders.written(**order(n, text))) for n, text in enumerate(["w1", None])]
    )
    worker = start_worker(
        kafka,
        model=model,
        served_name=unique("routed"),
        input_topic=source,
        output_topic=output,
        text="text",
        record_format="avro",
        output_format="json",
        schema_registry_url=registry_url,
    )
    records = {record.key: json.loads(record.value) for record in await read(worker, kafka, output, 2)}
    await worker.stop()
    assert len(records[b"0"].pop("result")) > 1
    plain = {"price": "1234567890.10", "at": 1709168523456789, "kind": "OLD", "hash": "AP8BAg==", "any": 0.1}
    assert records == {
        b"%d" % n: {"n": 2**60 + n, "text": text, **plain, "raw": {"a": "/wA="}} for n, text in enumerate(["w1", None])
    }


async def test_json_comes_out_as_avro_of_the_output_topics_schema(
    kafka: KafkaBroker,
    registry_url: str,
    registry: SchemaRegistryClient,
    unique: Unique,
    start_worker: StartWorker,
    model: Path,
) -> None:
    source, output = await make_topic(kafka, unique("orders")), unique("enriched")
    vector = {"name": "vector", "type": ["null", {"type": "array", "items": "float"}], "default": None}
    fields: Any = ORDER["fields"]
    plain = [one for one in fields if one["name"] in ("n", "text", "at", "kind")]
    schema = ORDER | {"fields": [*plain, vector]}
    registered = registry.register_schema(f"{output}-value", Schema(json.dumps(schema), "AVRO"))
    of_all = {"at": 1709168523456789, "kind": "OLD"}
    documents = [{"n": 2**60 + n, "text": text} | of_all for n, text in enumerate(["w1", None])]
    wrong = [b'{"n": 1, "text": "w1"}', b'{"n": 1, "n": 2, "text": "w1", "at": 1, "kind": "OLD"}']
    values = [*[json.dumps(one).encode() for one in documents], *wrong]
    await send(kafka, source, [Sent(b"%d" % n, value) for n, value in enumerate(values)] + [Sent(b"-", None)])
    worker = start_worker(
        kafka,
        model=model,
        served_name=unique("routed"),
        input_topic=source,
        output_topic=output,
        text="text",
        result_field="vector",
        output_format="avro",
        schema_registry_url=registry_url,
    )
    found = {record.key: record.value for record in await read(worker, kafka, output, 3)}
    letters = {letter.record.key: letter.record.value for letter in await letters_of(kafka, source, 2)}
    await worker.stop()
    assert letters == {b"2": wrong[0], b"3": wrong[1]}
    assert found[b"-"] is None
    assert struct.unpack(">bI", found[b"0"][:5]) == (0, registered)
    first, second = [Orders(registry, source, output).read(found[key]) for key in (b"0", b"1")]
    assert len(first.pop("vector")) > 1
    assert second.pop("vector") is None
    at = datetime.datetime(2024, 2, 29, 1, 2, 3, 456789, tzinfo=datetime.UTC)
    assert [first, second] == [one | {"at": at} for one in documents]


async def test_what_no_schema_describes_becomes_a_dead_letter(
    kafka: KafkaBroker,
    registry_url: str,
    registry: SchemaRegistryClient,
    unique: Unique,
    start_worker: StartWorker,
    model: Path,
) -> None:
    source, output = await make_topic(kafka, unique("orders")), unique("enriched")
    orders = Orders(registry, source, output)
    right = orders.written(**order(1, "w1"))
    wrong = [b"", b"{}", b'{"text": "w1"}', b"\x00\x7f\xff\xff\xff" + right[5:], right[:-1], right + b"\x00"]
    other = Orders(
        registry, source, output, {"type": "record", "name": "Pair", "fields": [{"name": "a", "type": "int"}]}
    )
    other.client.set_compatibility(f"{source}-value", "NONE")
    wrong.append(other.written(a=1)[:5])
    await send(kafka, source, [Sent(b"%d" % n, value) for n, value in enumerate([*wrong, right])])
    worker = start_worker(
        kafka,
        model=model,
        served_name=unique("routed"),
        input_topic=source,
        output_topic=output,
        text="text",
        record_format="avro",
        schema_registry_url=registry_url,
    )
    (record,) = await read(worker, kafka, output, 1)
    assert record.key == b"%d" % len(wrong)
    letters = {letter.record.key: letter for letter in await letters_of(kafka, source, len(wrong))}
    assert {key: letter.record.value for key, letter in letters.items()} == {b"%d" % n: v for n, v in enumerate(wrong)}
    assert {letter.code for letter in letters.values()} == {"invalid_request"}
    await worker.stop()


async def test_a_registry_that_is_away_holds_up_the_records_of_new_schemas_and_nothing_else(
    kafka: KafkaBroker,
    registry_url: str,
    registry: SchemaRegistryClient,
    unique: Unique,
    start_worker: StartWorker,
    model: Path,
) -> None:
    source, output = await make_topic(kafka, unique("orders")), unique("enriched")
    newer = ORDER | {"fields": [*ORDER["fields"], {"name": "note", "type": "string", "default": ""}]}
    old, new = Orders(registry, source, output), Orders(registry, source, output, newer)
    async with open_door(registry_url) as door:
        first = [Sent(b"a", old.written(**order(n, f"w{n}"))) for n in range(3)]
        last = Sent(b"c", old.written(**order(5, "w5")))
        await send(kafka, source, first, 0)
        worker = start_worker(
            kafka,
            model=model,
            served_name=unique("routed"),
            input_topic=source,
            output_topic=output,
            text="text",
            record_format="avro",
            schema_registry_url=door.url,
        )
        await read(worker, kafka, output, 3)
        held = [Sent(b"b", new.written(**order(3, "w1"), note="x")), Sent(b"b", old.written(**order(4, "w2")))]
        door.shut()
        await send(kafka, source, [*held, last], 0)
        found = await read(worker, kafka, output, 4)
        assert sorted([record.key for record in found]) == [b"a", b"a", b"a", b"c"]
        away = await worker.event("schema_registry_away")
        assert away["url"] == door.url
        await door.open()
        found = await read(worker, kafka, output, 6)
        await worker.event("schema_registry_back")
        await worker.stop()
        assert [new.read(record.value)["n"] - 2**60 for record in found if record.key == b"b"] == [3, 4]
        assert len(worker.events("schema_registry_away")) == 1


async def test_a_worker_stops_at_once_while_the_registry_is_away_and_the_next_one_has_the_records(
    kafka: KafkaBroker,
    registry_url: str,
    registry: SchemaRegistryClient,
    unique: Unique,
    start_worker: StartWorker,
    model: Path,
) -> None:
    source, output = await make_topic(kafka, unique("orders")), unique("enriched")
    newer = ORDER | {"fields": [*ORDER["fields"], {"name": "note", "type": "string", "default": ""}]}
    old, new = Orders(registry, source, output), Orders(registry, source, output, newer)
    async with open_door(registry_url) as door:
        settings = {
            "model": model,
            "served_name": unique("routed"),
            "input_topic": source,
            "output_topic": output,
            "text": "text",
            "record_format": "avro",
            "schema_registry_url": door.url,
        }
        await send(kafka, source, [Sent(b"a", old.written(**order(0, "w1")))], 0)
        worker = start_worker(kafka, drain_s=200, **settings)
        await read(worker, kafka, output, 1)
        value = new.written(**order(1, "w2"), note="x")  # of a schema that the worker does not know
        door.shut()
        await send(kafka, source, [Sent(b"b", value)], 0)
        await worker.event("schema_registry_away")
        await worker.stop()
        assert worker.events("drained")[-1]["seconds"] < 100
        await door.open()
        second = start_worker(kafka, **settings)
        found = await read(second, kafka, output, 2)
        await second.stop()
        assert [record.key for record in found] == [b"a", b"b"]


async def test_an_output_schema_that_is_not_compatible_is_refused_at_start(
    kafka: KafkaBroker,
    registry_url: str,
    registry: SchemaRegistryClient,
    unique: Unique,
    start_worker: StartWorker,
    model: Path,
) -> None:
    source, output = await make_topic(kafka, unique("orders")), unique("enriched")
    orders = Orders(registry, source, output)
    orders.written(**order(1, "w1"))
    other = ORDER | {"fields": [{"name": "n", "type": "string"}]}
    latest = orders.client.register_schema(f"{output}-value", Schema(json.dumps(other), "AVRO"))
    orders.client.set_compatibility(f"{output}-value", "BACKWARD")
    worker = start_worker(
        kafka,
        model=model,
        served_name=unique("routed"),
        input_topic=source,
        output_topic=output,
        text="text",
        record_format="avro",
        schema_registry_url=registry_url,
    )
    assert await worker.exit_code() != 0
    assert worker.events("library_noise") == []  # as of a producer that was left open
    registered = orders.client.get_latest_version(f"{source}-value")
    for part in (f"schema {registered.schema_id} of {source}-value", f"{output}-value, whose latest is {latest}"):
        assert part in worker.tail()
    assert "Traceback" not in worker.tail()
