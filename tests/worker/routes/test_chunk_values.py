"""The values of records of chunks, in each format; and routes that cannot have them."""

import json
from io import BytesIO
from typing import Any

import fastavro
import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict

from penstock.engine.types import ModelInfo
from penstock.producer.errors import InvalidRequest
from penstock.producer.wire.messages import NO_OPTIONS
from penstock.worker.routes.avro_schema import AvroSchema
from penstock.worker.routes.chunks import of_chunk, of_chunk_record
from penstock.worker.routes.json_schema import JsonSchema
from penstock.worker.routes.pointer import Pointer
from penstock.worker.routes.protobuf_schema import ProtobufSchema, compiled, message_class
from penstock.worker.routes.result_types import chunk_record_type, result_type
from penstock.worker.routes.route import Route
from penstock.worker.routes.settings import RouteSettings
from tests.worker.routes.test_chunks import ENCODER

TEXT = "one. two."
CHUNKS = [of_chunk(span, np.array([0.5, -1.0], np.float32)) for span in [(0, 4), (5, 9)]]
RESULTS = [
    {"chunk": 0, "chunks": 2, "text": "one.", "start": 0, "end": 4, "embedding": [0.5, -1.0]},
    {"chunk": 1, "chunks": 2, "text": "two.", "start": 5, "end": 9, "embedding": [0.5, -1.0]},
]


def settings_of(**more: Any) -> RouteSettings:
    fields = {"input_topic": "in", "output_topic": "out", "chunk_tokens": 12, "chunk_output": "records"}
    return RouteSettings.model_validate({"text": "/text", "task": "embed", **fields, **more})


def values(original: Any, info: ModelInfo = ENCODER, **more: Any) -> list[Any]:
    route = Route(settings_of(**more), info)
    written = route.chunk_values(original if isinstance(original, bytes) else json.dumps(original).encode(), CHUNKS)
    return [json.loads(value) for value in written]


def test_a_chunk_has_the_record_with_its_place_number_and_text() -> None:
    assert values({"id": 7, "text": TEXT}) == [{"id": 7, "text": TEXT, "result": one} for one in RESULTS]


def test_a_chunk_alone_where_the_result_is_the_whole_value() -> None:
    assert values({"id": 7, "text": TEXT}, result_field="") == RESULTS
    assert values(TEXT.encode(), record_format="text", text=None, result_field="") == RESULTS


def test_chunks_of_plain_text() -> None:
    found = values(TEXT.encode(), record_format="text", text=None)
    assert found == [{"text": TEXT, "result": one} for one in RESULTS]


@pytest.mark.parametrize("place", ["result", ""])
def test_the_schema_of_a_chunk_in_connects_json_is_that_of_its_value(place: str) -> None:
    schema = {"type": "struct", "fields": [{"field": "text", "type": "string"}]}
    found = values({"schema": schema, "payload": {"text": TEXT}}, result_field=place)
    described = found[0]["schema"] if not place else found[0]["schema"]["fields"][1]
    assert [(one["field"], one["type"]) for one in described["fields"]] == [
        ("chunk", "int64"),
        ("chunks", "int64"),
        ("text", "string"),
        ("start", "int64"),
        ("end", "int64"),
        ("embedding", "array"),
    ]
    assert [one["payload"]["result"] if place else one["payload"] for one in found] == RESULTS


def test_copies_of_a_record_that_are_too_large_together_are_refused() -> None:
    record = {"text": TEXT, "scan": "x" * (17 << 20)}
    with pytest.raises(InvalidRequest, match=r"may have 33,554,432\. In JSON with an empty result_field"):
        values(record)
    assert values(record, result_field="") == RESULTS


def _result() -> Any:
    return of_chunk_record(0, 2, "one.", CHUNKS[0])


def test_another_reader_finds_a_chunk_in_avro() -> None:
    order = {"type": "record", "name": "Order", "fields": [{"name": "text", "type": "string"}]}
    made = chunk_record_type(result_type("embed", NO_OPTIONS, "result"), "result")
    schema = AvroSchema(json.dumps(order), [], Pointer.parse("result"), made)
    body = BytesIO()
    fastavro.schemaless_writer(body, order, {"text": TEXT})
    written = schema.write(body.getvalue(), _result())
    found = fastavro.schemaless_reader(BytesIO(written), fastavro.parse_schema(json.loads(schema.output)), None)
    assert found == {"text": TEXT, "result": RESULTS[0]}


def test_another_reader_finds_a_chunk_in_protobuf() -> None:
    order = 'syntax = "proto3"; message Order { string text = 1; }'
    made = chunk_record_type(result_type("embed", NO_OPTIONS, "result"), "result")
    schema = ProtobufSchema(order, [], Pointer.parse("result"), made)
    original = message_class(compiled([("order.proto", order)]))(text=TEXT).SerializeToString()
    message = message_class(compiled([("order.proto", schema.output)]))()
    message.ParseFromString(schema.write(b"\0" + original, _result())[1:])
    assert MessageToDict(message)["result"] == {
        name: value for name, value in RESULTS[0].items() if value != 0
    }  # a zero is Protobuf's default


def test_a_chunk_in_json_schema_is_an_object() -> None:
    made = chunk_record_type(result_type("classify", NO_OPTIONS, "result"), "result")
    schema = JsonSchema('{"type": "object", "properties": {}}', Pointer.parse("result"), made)
    described = json.loads(schema.output)["properties"]["result"]
    assert {"chunk", "chunks", "text", "start", "end", "label", "score"} <= set(json.dumps(described).split('"'))


def test_routes_that_cannot_have_records_of_chunks_are_refused() -> None:
    with pytest.raises(ValueError, match="chunk_output records needs chunk_tokens"):
        settings_of(chunk_tokens=None)
    with pytest.raises(ValueError, match="missing_text null is for one output record"):
        settings_of(missing_text="null")
    with pytest.raises(ValueError, match="249"):
        settings_of(output_topic="o" * 240)
