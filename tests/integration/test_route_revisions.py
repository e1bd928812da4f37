"""A topic whose results get the revision of their model later: a compatible schema, in every kind of a registry."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.json_format import MessageToDict

from penstock.ops.kafka import KafkaBroker
from penstock.worker.routes.protobuf_schema import compiled, message_class
from tests.engine.helpers import save_sentence_transformer
from tests.integration.conftest import StartWorker, Unique
from tests.integration.test_routes import WORDS, Sent, make_topic, read, send

AVRO = {"type": "record", "name": "Order", "fields": [{"name": "text", "type": "string"}]}
PROTOBUF = 'syntax = "proto3"; message Order { string text = 1; }'
JSON_SCHEMA = {
    "title": "Order",
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "additionalProperties": False,
}
CONFIG = {"use.deprecated.format": False}


class Kind(NamedTuple):
    """A user's programs for the records of one kind of schema."""

    record_format: str
    writer: Callable[[SchemaRegistryClient], tuple[Any, Any]]  # a serializer, and a record
    reader: Callable[[SchemaRegistryClient, str], Any]  # a deserializer that wants a schema
    document: Callable[[Any], dict[str, Any]] = lambda found: dict(found)


def _protobuf_writer(client: SchemaRegistryClient) -> tuple[Any, Any]:
    order: Any = message_class(compiled([("order.proto", PROTOBUF)]))
    return ProtobufSerializer(order, client, CONFIG), order(text="w1")


def _protobuf_reader(client: SchemaRegistryClient, schema: str) -> Any:
    return ProtobufDeserializer(message_class(compiled([("order.proto", schema)])), CONFIG, client)


KINDS = [
    Kind("avro", lambda client: (AvroSerializer(client, json.dumps(AVRO)), {"text": "w1"}), AvroDeserializer),
    Kind(
        "protobuf",
        _protobuf_writer,
        _protobuf_reader,
        lambda found: MessageToDict(found, preserving_proto_field_name=True),
    ),
    Kind(
        "json-schema",
        lambda client: (JSONSerializer(json.dumps(JSON_SCHEMA), client), {"text": "w1"}),
        lambda client, schema: JSONDeserializer(schema, schema_registry_client=client),
    ),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("routed")
    save_sentence_transformer(directory, WORDS)
    return directory / "model"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.record_format)
async def test_records_with_and_without_the_revision_are_read_by_one_reader(
    kafka: KafkaBroker,
    registry_url: str,
    registry: SchemaRegistryClient,
    unique: Unique,
    start_worker: StartWorker,
    model: Path,
    kind: Kind,
) -> None:
    source, output = await make_topic(kafka, unique("orders"), 1), unique("enriched")
    settings = {
        "model": model,
        "served_name": "minilm",
        "input_topic": source,
        "output_topic": output,
        "text": "text",
        "result_field": "vector",
        "record_format": kind.record_format,
        "schema_registry_url": registry_url,
    }
    serialize, order = kind.writer(registry)
    value = serialize(order, SerializationContext(source, MessageField.VALUE))
    for count, more in enumerate([{}, {"revision_field": "vector_revision"}], 1):
        await send(kafka, source, [Sent(b"k", value)])
        worker = start_worker(kafka, **settings, **more)
        found = await read(worker, kafka, output, count)
        await worker.stop()
        if count == 1 and kind.record_format != "protobuf":  # this registry's rule fails for descriptors
            registry.set_compatibility(f"{output}-value", "BACKWARD")
    latest = registry.get_latest_version(f"{output}-value")
    deserialize = kind.reader(registry, latest.schema.schema_str or "")
    context = SerializationContext(output, MessageField.VALUE)
    old, new = [kind.document(deserialize(record.value, context)) for record in found]
    assert latest.version == 2
    assert old["vector"] == new["vector"]
    assert old.get("vector_revision") is None
    assert new["vector_revision"] == f"minilm@{dict(found[1].headers)['penstock-revision'].decode()}"
