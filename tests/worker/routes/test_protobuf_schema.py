"""Records in Protobuf: what the derived message finds in them, and what stays as it was."""

import base64
from typing import Any

import numpy as np
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from penstock.producer.errors import InvalidRequest, WrongArgument
from penstock.producer.wire.messages import NO_OPTIONS
from penstock.worker.routes.pointer import Pointer
from penstock.worker.routes.protobuf_schema import ProtobufSchema, compiled, message_class
from penstock.worker.routes.result_types import result_type
from penstock.worker.routes.revision_field import RevisionField

OTHER = 'syntax = "proto3"; package o; message Other { int32 a = 1; }'
ORDER = """
syntax = "proto2";
package shop;
import "google/protobuf/timestamp.proto";
import "other.proto";
message Order {
  required string text = 1;
  optional int64 n = 4;
  optional google.protobuf.Timestamp at = 5;
  repeated o.Other others = 6;
  reserved 9 to 11;
}
"""
FILES = [("other.proto", OTHER)]
RESULTS: dict[str, Any] = {
    "embed": np.array([0.5, -2.5], np.float32),
    "rerank": np.float32(0.5),
    "classify": {"label": "a", "score": np.float32(0.5)},
    "embed_sparse": {"indices": np.array([7], np.uint32), "values": np.array([0.5], np.float32)},
    "token_classify": [{"label": "a", "score": np.float32(0.5), "start": 1, "end": 2}],
    "generate": {"text": "b", "finish": "stop", "tokens": [1, 2]},
}


def made(task: str = "embed", place: str = "result", text: str = ORDER) -> ProtobufSchema:
    return ProtobufSchema(text, FILES, Pointer.parse(place), result_type(task, NO_OPTIONS, "result"))


def order() -> Any:
    return message_class(compiled([*FILES, ("a.proto", ORDER)]))(text="w1", n=2**60, others=[{"a": 1}])


@pytest.mark.parametrize("task", RESULTS)
def test_the_derived_message_has_the_record_and_the_result_of_every_task(task: str) -> None:
    schema, original = made(task), order()
    body = b"\x00" + original.SerializeToString()
    assert schema.read(body) == {"text": "w1", "n": str(2**60), "others": [{"a": 1}]}
    value = schema.write(body, RESULTS[task])
    assert value.startswith(body)
    enriched: Any = message_class(compiled([*FILES, ("a.proto", schema.output)])).FromString(value[1:])
    assert (enriched.text, enriched.n, enriched.others[0].a) == ("w1", 2**60, 1)
    match task:
        case "embed":
            assert list(enriched.result) == [0.5, -2.5]
        case "rerank":
            assert enriched.result == 0.5
        case "embed_sparse":
            assert (list(enriched.result.indices), list(enriched.result.values)) == ([7], [0.5])
        case "generate":
            assert (enriched.result.text, list(enriched.result.tokens)) == ("b", [1, 2])
        case _:
            found = enriched.result[0] if task == "token_classify" else enriched.result
            assert (found.label, found.score) == ("a", 0.5)


@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
def test_a_value_that_is_not_there_is_absent_for_a_reader_and_not_zero(syntax: str) -> None:
    text = f'syntax = "{syntax}"; message Order {{ optional string text = 1; oneof _result {{ int32 a = 2; }} }}'
    revision = RevisionField("model", "m")

    def read(task: str, result: Any) -> Any:
        schema = ProtobufSchema(text, [], Pointer(("result",)), result_type(task, NO_OPTIONS, "result"), revision)
        value = schema.write(b"\x00\x0a\x02w1", result)
        return message_class(compiled([("a.proto", schema.output)])).FromString(value[1:])

    unscored, scored = read("rerank", None), read("rerank", np.float32(0))
    assert (unscored.text, unscored.HasField("result"), unscored.HasField("model")) == ("w1", False, False)
    assert (scored.result, scored.HasField("result"), scored.HasField("model")) == (0, True, True)
    (span,) = read("token_classify", [{"label": "a", "score": np.float32(0), "start": 0, "end": None}]).result
    assert (span.HasField("start"), span.HasField("end")) == (True, False)
    assert not read("generate", {"finish": "stop", "tokens": [1]}).result.HasField("text")


def numbers(text: str) -> dict[str, int]:
    schema = ProtobufSchema(text, [], Pointer(("result",)), result_type("embed", NO_OPTIONS, "result"))
    file = FileDescriptorProto.FromString(base64.b64decode(schema.output))
    return {field.name: field.number for field in file.message_type[0].field}


def of_fields(fields: str) -> str:
    return f'syntax = "proto2"; message Order {{ optional string text = 1; {fields} }}'


def test_the_field_keeps_its_number_in_later_versions_of_the_message() -> None:
    first, later = numbers(of_fields("")), numbers(of_fields("optional string note = 2; optional int32 n = 40000;"))
    assert first["result"] == later["result"] == 100_000


@pytest.mark.parametrize(
    ("fields", "number"),
    [
        ("optional int32 n = 100000;", 100_001),
        ("reserved 99000 to 100010, 100011;", 100_012),
        ("optional int32 n = 6; reserved 9 to max;", 7),
        ("optional int32 n = 6; extensions 7, 9 to max;", 8),
        ("optional int32 n = 18999; reserved 20003 to max;", 20_000),  # Protobuf has 19,000 to 19,999
    ],
)
def test_the_field_has_a_number_that_nothing_else_has(fields: str, number: int) -> None:
    assert numbers(of_fields(fields))["result"] == number


@pytest.mark.parametrize(
    "fields",
    ["reserved 2 to max;", "oneof result { int32 n = 2; }", "optional int32 re_sult = 2 [json_name='result'];"],
)
def test_a_message_that_cannot_have_the_field_is_refused(fields: str) -> None:
    with pytest.raises(WrongArgument, match="result"):
        numbers(of_fields(fields))


def test_a_schema_may_be_a_descriptor_in_base64() -> None:
    descriptor = compiled([*FILES, ("a.proto", ORDER)])[-1]
    schema = made(text=base64.b64encode(descriptor.SerializeToString()).decode())
    assert schema.read(b"\x00" + order().SerializeToString())["text"] == "w1"


@pytest.mark.parametrize("body", [b"", b"\x02\x02\x0a\x01a", b"\x00\xff\xff", b"\x00\x0a\x02\xff\xff"])
def test_bytes_that_are_not_of_the_first_message_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        made().read(body)


@pytest.mark.parametrize(
    ("place", "text", "reason"),
    [
        ("text", ORDER, "has a field 'text' already"),
        ("/at/result", ORDER, "a field of the message itself"),
        ("", ORDER, "a field of the message itself"),
        ("result", 'syntax = "proto3";', "no message"),
        ("result", "message {", "protoc"),
        ("result", 'syntax = "proto3"; import "none.proto"; message A {}', "protoc"),
    ],
)
def test_a_schema_that_has_no_place_is_refused_with_the_reason(place: str, text: str, reason: str) -> None:
    with pytest.raises(WrongArgument, match=reason):
        made(place=place, text=text)
