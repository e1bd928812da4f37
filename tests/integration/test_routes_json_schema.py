"""Routes in JSON with JSON Schemas, with a real schema registry, and confluent-kafka's own serializers."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from penstock.ops.kafka import KafkaBroker
from tests.engine.helpers import save_sentence_transformer
from tests.integration.conftest import StartWorker, Unique
from tests.integration.test_routes import WORDS, Sent, make_topic, read, send

ORDER = {
    "title": "Order",
    "type": "object",
    "properties": {"text": {"type": "string"}, "price": {"type": "number"}},
    "additionalProperties": False,
}


async def test_records_come_out_with_their_vectors_and_a_schema_that_they_fit(
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
    write = JSONSerializer(json.dumps(ORDER), registry)
    context = SerializationContext(source, MessageField.VALUE)
    values = [write({"text": f"w{n}", "price": 1.5}, context) for n in range(5)]
    await send(kafka, source, [Sent(b"%d" % n, value) for n, value in enumerate(values)])
    worker = start_worker(
        kafka,
        model=Path(directory / "model"),
        served_name=unique("routed"),
        input_topic=source,
        output_topic=output,
        text="text",
        result_field="vector",
        record_format="json-schema",
        schema_registry_url=registry_url,
    )
    enriched = {record.key: record.value for record in await read(worker, kafka, output, 5)}
    await worker.stop()
    latest = registry.get_latest_version(f"{output}-value")
    schema_text = latest.schema.schema_str
    assert schema_text is not None
    deserialize = JSONDeserializer(schema_text, schema_registry_client=registry)
    for n, value in enumerate(values):
        found = enriched[b"%d" % n]
        assert struct.unpack(">bI", found[:5]) == (0, latest.schema_id)
        assert value is not None
        assert found[5:].startswith(value[5:-1])
        document = deserialize(found, SerializationContext(output, MessageField.VALUE))
        assert np.isfinite(document.pop("vector")).all()
        assert document == {"text": f"w{n}", "price": 1.5}
