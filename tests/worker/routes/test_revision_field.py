"""The field that names the model of a result, in every format: beside the result, and null where that is null."""

import json
from dataclasses import replace
from io import BytesIO
from typing import Any

import fastavro
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from penstock.engine import NullEngine
from penstock.worker.routes.avro_schema import AvroSchema
from penstock.worker.routes.json_schema import JsonSchema
from penstock.worker.routes.pointer import Pointer
from penstock.worker.routes.protobuf_schema import ProtobufSchema, compiled, message_class
from penstock.worker.routes.revision_field import RevisionField
from penstock.worker.routes.route import Route
from penstock.worker.routes.settings import RouteSettings

VECTOR = np.array([0.5, -2.0], np.float32)
INFO = NullEngine(4, name="minilm", vocab_size=100).info
MODEL = f"minilm@{INFO.revision}"
REVISION = RevisionField("made_by", "minilm@1f")
FLOATS = {"type": "array", "items": "float"}


def route(**settings: Any) -> Route:
    text = {} if settings.get("record_format") == "text" else {"text": "/after/body"}
    given = {"input_topic": "in", "output_topic": "out", "missing_text": "null", **text, **settings}
    return Route(RouteSettings(**given), INFO, None)


def connect(payload: Any) -> bytes:
    row = {"type": "struct", "fields": [{"type": "string", "field": "body"}], "optional": True, "field": "after"}
    return json.dumps({"schema": {"type": "struct", "fields": [row]}, "payload": payload}).encode()


@given(st.dictionaries(st.text(max_size=3), st.none() | st.integers(-9, 9) | st.text(max_size=3), max_size=3))
def test_in_json_both_fields_follow_the_bytes_of_the_record(document: dict[str, Any]) -> None:
    document = {name: value for name, value in document.items() if name not in ("v", "made by")}
    if document.keys() == {"schema", "payload"}:
        return
    value = json.dumps(document).encode()
    written = route(result_field="v", revision_field="made by").format.write(value, VECTOR)
    assert written.startswith(value[:-1])
    assert json.loads(written) == document | {"v": [0.5, -2.0], "made by": MODEL}


def test_results_of_int8_are_told_apart() -> None:
    given: dict[str, Any] = {"input_topic": "in", "output_topic": "out", "text": "/a", "result_field": "v"}
    found = RevisionField.of(RouteSettings(**given, revision_field="by"), replace(INFO, dtype="int8"))
    assert found == RevisionField("by", f"{MODEL}-int8")


def test_in_a_change_event_it_is_beside_the_result_and_follows_it_to_null() -> None:
    one = route(result_field="/after/v", revision_field="/after/made~1by")
    value = b'{"op": "u", "after": {"body": "a", "made/by": "another model"}}'
    after = {"body": "a", "v": [0.5, -2.0], "made/by": MODEL}
    assert json.loads(one.format.write(value, VECTOR)) == {"op": "u", "after": after}
    passed = one.passed(b'{"op": "u", "after": {"body": null}}')
    assert json.loads(passed or b"") == {"op": "u", "after": {"body": None, "v": None, "made/by": None}}
    assert one.passed(b'{"op": "d", "after": null}') == b'{"op": "d", "after": null}'


@pytest.mark.parametrize("has_text", [True, False])
def test_connects_schema_has_it_as_a_string_whether_there_is_a_result_or_not(has_text: bool) -> None:
    one = route(result_field="/after/v", revision_field="/after/made_by")
    value = connect({"after": {"body": "a" if has_text else None}})
    document = json.loads((one.format.write(value, VECTOR) if has_text else one.passed(value)) or b"")
    (row,) = document["schema"]["fields"]
    assert row["fields"][1:] == [
        {"type": "array", "items": {"type": "float"}, "optional": True, "field": "v"},
        {"type": "string", "optional": True, "field": "made_by"},
    ]
    assert document["payload"]["after"]["made_by"] == (MODEL if has_text else None)


def test_a_record_of_plain_text_has_it_too() -> None:
    written = route(record_format="text", revision_field="made_by").format.write(b"some text", VECTOR)
    assert json.loads(written) == {"text": "some text", "result": [0.5, -2.0], "made_by": MODEL}


@pytest.mark.parametrize("result", [VECTOR, None])
@pytest.mark.parametrize("place", ["v", "/inner/v"])
def test_in_avro_it_is_a_nullable_string_behind_the_result(place: str, result: Any) -> None:
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "double"}]}
    fields = [{"name": "inner", "type": ["null", inner]}, {"name": "last", "type": "string"}]
    schema = {"type": "record", "name": "Order", "fields": fields}
    document = {"inner": {"x": 0.5}, "last": "z"}
    body = BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), document)
    one = AvroSchema(json.dumps(schema), [], Pointer.parse(place), FLOATS, REVISION)
    written = BytesIO(one.write(body.getvalue(), result))
    found: Any = fastavro.schemaless_reader(written, fastavro.parse_schema(json.loads(one.output)), None)
    assert written.read() == b""
    holder = found["inner"] if place.startswith("/") else found
    assert (holder.pop("v"), holder.pop("made_by")) == ((None, None) if result is None else ([0.5, -2.0], "minilm@1f"))
    assert found == document


@pytest.mark.parametrize("result", [VECTOR, None])
def test_in_protobuf_the_result_keeps_its_number(result: Any) -> None:
    """So a topic may get the field later: its old records stay readable."""
    text = 'syntax = "proto3"; message Order { string body = 1; }'
    schemas = [ProtobufSchema(text, [], Pointer.parse("v"), FLOATS, revision) for revision in (None, REVISION)]
    old, new = [message_class(compiled([("a.proto", one.output)])) for one in schemas]
    assert [field.number for field in new.DESCRIPTOR.fields] == [1, 100_000, 100_001]
    assert [field.name for field in new.DESCRIPTOR.fields] == ["body", "v", "made_by"]
    body = b"\x00" + old(body="a").SerializeToString()
    written: Any = new.FromString(schemas[1].write(body, result)[1:])
    assert (written.body, list(written.v)) == ("a", [] if result is None else [0.5, -2.0])
    assert written.made_by == ("" if result is None else "minilm@1f")


@pytest.mark.parametrize("result", [VECTOR, None])
def test_in_json_schema_it_may_be_null_or_a_string(result: Any) -> None:
    one = JsonSchema('{"type": "object", "additionalProperties": false}', Pointer.parse("v"), FLOATS, REVISION)
    nullable = {"oneOf": [{"type": "null"}, {"type": "string"}]}
    assert json.loads(one.output)["properties"]["made_by"] == nullable
    document = json.loads(one.write(b'{"body": "a"}', result))
    assert document["made_by"] == (None if result is None else "minilm@1f")


@pytest.mark.parametrize(
    ("result_field", "revision_field"),
    [("", "r"), ("v", "v"), ("/after/v", "r"), ("v", "/after/r"), ("/a/v", "/a/v/r"), ("/a/v", "/b/r"), ("v", "")],
)
def test_a_place_that_is_not_beside_the_result_is_refused(result_field: str, revision_field: str) -> None:
    with pytest.raises(ValidationError, match="revision_field"):
        route(result_field=result_field, revision_field=revision_field)


def test_what_is_refused_names_a_place_that_would_do() -> None:
    with pytest.raises(ValidationError, match="such as /after/embedding_revision"):
        route(result_field="/after/embedding", revision_field="revision")


@pytest.mark.parametrize("field", ["result_field", "revision_field"])
@pytest.mark.parametrize("place", ["text", "/text"])
def test_a_plain_text_is_not_replaced(field: str, place: str) -> None:
    with pytest.raises(ValidationError, match="the field text of a record of plain text is its text"):
        route(record_format="text", **{field: place})
