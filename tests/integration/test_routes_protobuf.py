"""Routes in Protobuf, with a real schema registry. Written and read by confluent-kafka's own serializers."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.json_format import MessageToDict

from penstock.ops.kafka import KafkaBroker
from penstock.worker.routes.protobuf_schema import compiled, message_class
from tests.engine.helpers import save_sentence_transformer
from tests.integration.conftest import StartWorker, Unique, letters_of
from tests.integration.test_routes import WORDS, Sent, make_topic, read, send

ORDER = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Order {
  string text = 1;
  int64 n = 2;
  google.protobuf.Timestamp at = 5;
  reserved 6 to 9;
}
"""

ENRICHED = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Enriched {
  message Item { float price = 1; bytes raw = 2; }
  enum Kind { UNKNOWN = 0; OLD = 1; }
  string text = 1;
  int64 n = 2;
  Kind kind = 3;
  repeated Item items = 4;
  google.protobuf.Timestamp at = 5;
  repeated float vector = 9;
}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("routed")
    save_sentence_transformer(directory, WORDS)
    return directory / "model"


async def test_records_come_out_with_their_vectors_and_are_otherwise_as_they_were(
    kafka: KafkaBroker,
    registry_url: str,
    registry: SchemaRegistryClient,
    unique: Unique,
    start_worker: StartWorker,
    model: Path,
) -> None:
    source, output = await make_topic(kafka, unique("orders")), unique("enriched")
    order: Any = message_class(compiled([("order.proto", ORDER)]))
    write = ProtobufSerializer(order, registry, {"use.deprecated.format": False})
    context = SerializationContext(source, MessageField.VALUE)
    sent = [order(text=f"w{n + 1}", n=2**60 + n) for n in range(5)]
    values = [write(one, context) or b"" for one in sent]
    await send(kafka, source, [Sent(b"%d" % n, value) for n, value in enumerate(values)])
    worker = start_worker(
        kafka,
        model=model,
        served_name=unique("routed"),
        input_topic=source,
        output_topic=output,
        text="text",
        result_field="vector",
        record_format="protobuf",
        schema_registry_url=registry_url,
    )
    enriched = {record.key: record.value for record in await read(worker, kafka, output, 5)}
    await worker.stop()
    latest = registry.get_latest_version(f"{output}-value")
    enriched_order: Any = message_class(compiled([("order.proto", latest.schema.schema_str or "")]))
    deserialize = ProtobufDeserializer(enriched_order, {"use.deprecated.format": False}, registry)
    for n, value in enumerate(values):
        found = enriched[b"%d" % n]
        assert struct.unpack(">bI", found[:5]) == (0, latest.schema_id)
        assert found[5:].startswith(value[5:])
        document: Any = deserialize(found, SerializationContext(output, MessageField.VALUE))
        assert len(document.vector) > 1
        assert np.isfinite(document.vector).all()
        assert (document.text, document.n) == (sent[n].text, sent[n].n)


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_json_comes_out_as_protobuf_of_the_output_topics_schema(
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
    enriched: Any = message_class(compiled([("enriched.proto", ENRICHED)]))
    context = SerializationContext(output, MessageField.VALUE)
    ProtobufSerializer(enriched, registry, {"use.deprecated.format": False})(enriched(), context)  # registers it
    registered = registry.get_latest_version(f"{output}-value").schema_id
    of_all: Any = {"kind": "OLD", "items": [{"price": 0.1, "raw": "AP8="}], "at": "2024-02-29T01:02:03.456Z"}
    documents = [{"text": f"w{n + 1}", "n": 2**60 + n} | of_all for n in range(5)] + [{"n": 1}]
    wrong = [
        b'{"text": "w1", "n": 9223372036854775808}',
        b'{"text": "w1", "more": 1}',
        b'{"text": "w1", "items": [null]}',
    ]
    values = [*[json.dumps(one).encode() for one in documents], *wrong]
    await send(kafka, source, [Sent(b"%d" % n, value) for n, value in enumerate(values)] + [Sent(b"-", None)])
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
        output_format="protobuf",
        schema_registry_url=registry_url,
    )
    found = {
        record.key: record.value for record in await read(worker, kafka, output, 7, isolation_level="read_committed")
    }
    letters = {letter.record.key: letter.record.value for letter in await letters_of(kafka, source, 3)}
    await worker.stop()
    assert letters == {b"%d" % n: value for n, value in enumerate(wrong, start=len(documents))}
    assert found.pop(b"-") is None
    deserialize = ProtobufDeserializer(enriched, {"use.deprecated.format": False}, registry)
    reference: Any = SentenceTransformer(str(model), device="cpu")
    for n, one in enumerate(documents):
        value = found[b"%d" % n]
        assert struct.unpack(">bI", value[:5]) == (0, registered)
        message: Any = deserialize(value, context)
        if "text" in one:
            np.testing.assert_allclose(message.vector, reference.encode(one["text"]), atol=1e-5)
        message.ClearField("vector")
        assert MessageToDict(message) == one | {"n": str(one["n"])}


async def test_json_without_a_schema_of_the_output_is_refused_at_start(
    kafka: KafkaBroker,
    registry_url: str,
    registry: SchemaRegistryClient,
    unique: Unique,
    start_worker: StartWorker,
    model: Path,
) -> None:
    source, output = await make_topic(kafka, unique("orders")), unique("enriched")
    registry.register_schema(f"{output}-value", Schema(ORDER, "PROTOBUF"))
    worker = start_worker(
        kafka,
        model=model,
        served_name=unique("routed"),
        input_topic=source,
        output_topic=output,
        text="text",
        result_field="vector",
        output_format="protobuf",
        schema_registry_url=registry_url,
    )
    assert await worker.exit_code() != 0
    assert "must have a field /vector: repeated float" in worker.tail()
    assert "Traceback" not in worker.tail()
