"""Routes in Protobuf, with a real schema registry. Written and read by confluent-kafka's own serializers."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from penstock.ops.kafka import KafkaBroker
from penstock.worker.routes.protobuf_schema import compiled, message_class
from tests.engine.helpers import save_sentence_transformer
from tests.integration.conftest import StartWorker, Unique
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


async def test_records_come_out_with_their_vectors_and_are_otherwise_as_they_were(
    kafka: KafkaBroker,
    registry_url: str,
    registry: SchemaRegistryClient,
    unique: Unique,
    start_worker: StartWorker,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("routed")
    save_sentence_transformer(directory, WORDS)
    source, output = await make_topic(kafka, unique("orders")), unique("enriched")
    order: Any = message_class(compiled([("order.proto", ORDER)]))
    write = ProtobufSerializer(order, registry, {"use.deprecated.format": False})
    context = SerializationContext(source, MessageField.VALUE)
    sent = [order(text=f"w{n + 1}", n=2**60 + n) for n in range(5)]
    values = [write(one, context) or b"" for one in sent]
    await send(kafka, source, [Sent(b"%d" % n, value) for n, value in enumerate(values)])
    worker = start_worker(
        kafka,
        model=Path(directory / "model"),
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
