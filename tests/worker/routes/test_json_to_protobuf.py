"""JSON in, Protobuf out: by the schema that the output topic has. Read by the classes that protoc makes of it."""

import datetime
import importlib
import json
import math
import re
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from confluent_kafka.schema_registry import Schema
from google.protobuf.json_format import MessageToDict
from grpc_tools import protoc
from hypothesis import given
from hypothesis import strategies as st

from penstock.producer.errors import InvalidRequest, WrongArgument
from penstock.producer.wire.messages import NO_OPTIONS
from penstock.producer.wire.plain_rows import plain_json
from penstock.worker.requests.record_fields import unquoted_reason
from penstock.worker.routes.formats import format_of
from penstock.worker.routes.pointer import Pointer
from penstock.worker.routes.protobuf_schema import compiled, message_class
from penstock.worker.routes.record_format import RecordFormat
from penstock.worker.routes.revision_field import RevisionField
from penstock.worker.routes.settings import RouteSettings

VECTOR = np.array([0.1, -2.5], np.float32)
OTHER = 'syntax = "proto3"; package shop; message Item { float price = 1; sint32 delta = 2; }'
ORDER = """
syntax = "proto3";
package shop;
import "shop_item.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
message Order {
  enum Kind { UNKNOWN = 0; NEW = 1; OLD = 2; }
  message Row { string body = 1; repeated float vector = 2; }
  string text = 1;
  optional string note = 2;
  int64 big = 3;
  uint64 unsigned = 4;
  int32 small = 5;
  fixed32 fixed = 6;
  double d = 7;
  float f = 8;
  bool flag = 9;
  bytes raw = 10;
  Kind kind = 11;
  repeated Kind kinds = 12;
  repeated Item items = 13;
  map<string, int64> counts = 14;
  map<int32, Item> by_id = 15;
  map<bool, string> by_flag = 16;
  oneof payment { string card = 17; int32 cash = 18; }
  google.protobuf.Timestamp at = 19;
  google.protobuf.Duration took = 20;
  google.protobuf.Struct more = 21;
  google.protobuf.Value any = 22;
  google.protobuf.Int64Value count = 23;
  Row after = 24;
  Order parent = 25;
  repeated float vector = 30;
  optional string made_by = 31;
}
"""
WITH_REQUIRED = """
syntax = "proto2";
message Order {
  message Row { required int32 id = 1; }
  required string text = 1; repeated Row rows = 2; repeated float vector = 3;
}
"""


class Registry:
    """A registry with one subject's schema, or none."""

    def __init__(self, schema: str | None, kind: str = "PROTOBUF") -> None:
        self._latest = None if schema is None else (7, Schema(schema, kind))

    async def latest(self, subject: str) -> Any:
        assert subject == "out-value"
        return self._latest

    async def referenced(self, schema: Any) -> list[tuple[str, str]]:
        return [("shop_item.proto", OTHER)]


async def made(schema: str | None = ORDER, *, kind: str = "PROTOBUF", **given: Any) -> RecordFormat:
    fields = {"input_topic": "in", "output_topic": "out", "text": "text", "output_format": "protobuf"}
    settings = RouteSettings.model_validate(fields | {"task": "embed", "result_field": "vector"} | given)
    name = settings.revision_field
    revision = None if name is None else RevisionField(Pointer.parse(name).names[-1], "m@1")
    registry: Any = Registry(schema, kind)
    found = format_of(
        settings, str(settings.task), NO_OPTIONS, registry, revision, is_chunked=settings.chunk_tokens is not None
    )
    await found.check()
    return found


@pytest.fixture(scope="module")
def order_class(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The class that protoc makes of the schema, as a reader has it."""
    folder = tmp_path_factory.mktemp("protoc")
    (folder / "shop_order.proto").write_text(ORDER)
    (folder / "shop_item.proto").write_text(OTHER)
    included = Path(protoc.__file__).parent / "_proto"
    command = ["protoc", f"-I{folder}", f"-I{included}", f"--python_out={folder}", "shop_item.proto"]
    assert protoc.main([*command, "shop_order.proto"]) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        return importlib.import_module("shop_order_pb2").Order


def found(order_class: Any, value: bytes) -> Any:
    """A message, and what Protobuf's JSON says that it has."""
    assert value[:6] == b"\0" + (7).to_bytes(4, "big") + b"\0"  # the schema's id, and its first message
    return order_class.FromString(value[6:])


def floats(width: Literal[32, 64]) -> st.SearchStrategy[float]:
    return st.floats(allow_nan=False, allow_infinity=False, width=width)


# Fewest digits: those of the largest one are beyond it, and Protobuf's reader refuses them.
PRICES = st.floats(-(2.0**127), 2.0**127, width=32).map(lambda f: float(str(np.float32(f))))
ITEMS = st.fixed_dictionaries({}, optional={"price": PRICES, "delta": st.integers(-(2**31), 2**31 - 1)})
LONGS = st.integers(-(2**63), 2**63 - 1)
DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "text": st.text(),
        "note": st.none() | st.text(),
        "big": LONGS | LONGS.map(str),
        "unsigned": st.integers(0, 2**64 - 1),
        "small": st.integers(-(2**31), 2**31 - 1),
        "fixed": st.integers(0, 2**32 - 1),
        "d": floats(64) | st.integers(-(2**53), 2**53),
        "f": floats(32) | st.integers(-(2**24), 2**24) | st.integers(0, 63).map(lambda n: 2**n),
        "flag": st.booleans(),
        "kind": st.sampled_from(["UNKNOWN", "NEW", "OLD"]),
        "kinds": st.lists(st.sampled_from(["UNKNOWN", "NEW", "OLD"])),
        "items": st.lists(ITEMS),
        "counts": st.dictionaries(st.text(), LONGS),
        "by_id": st.dictionaries(st.integers(-(2**31), 2**31 - 1).map(str), ITEMS),
        "by_flag": st.dictionaries(st.sampled_from(["true", "false"]), st.text()),
        "card": st.text(),
        "more": st.dictionaries(st.text(), st.none() | st.booleans() | floats(64) | st.lists(st.text())),
        "count": st.none() | LONGS,
        "parent": st.none() | st.fixed_dictionaries({"text": st.text()}),
    },
)


@given(DOCUMENTS)
async def test_another_reader_finds_the_document_and_the_result(order_class: Any, document: dict[str, Any]) -> None:
    route, value = await made(), json.dumps(document).encode()
    message = found(order_class, route.write(value, VECTOR))
    assert np.array_equal(np.array(message.vector, np.float32), VECTOR)
    message.ClearField("vector")
    assert message == found(order_class, route.passed(value)) == found(order_class, route.write(value, None))
    assert is_same(document, shown(message))
    assert message.d == document.get("d", 0)  # in all of its digits


def shown(message: Any) -> Any:
    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def is_same(given: Any, shown: Any) -> bool:
    """Whether Protobuf's JSON of a message has what a document has. Null is absent there, a long a text."""
    if isinstance(given, dict):
        return all(is_same(value, shown.get(name)) for name, value in given.items())
    if isinstance(given, list):
        return len(given) == len(shown) and all(map(is_same, given, shown))
    if isinstance(shown, float):  # of a field of 32 bits, the fewest digits
        has_sign = type(given) is int or math.copysign(1, given) == math.copysign(1, shown)
        return has_sign and (given == shown or np.float32(given) == np.float32(shown))
    return bool(given == shown) or (type(given) is int and str(given) == shown)


async def test_a_field_names_the_model_of_a_result(order_class: Any) -> None:
    route = await made(revision_field="made_by")
    message = found(order_class, route.write(b'{"made_by": "m@0", "vector": [1]}', VECTOR))
    assert (message.made_by, list(message.vector)) == ("m@1", VECTOR.tolist())
    message = found(order_class, route.write(b'{"made_by": "m@0", "vector": [1]}', None))
    assert not message.HasField("made_by")
    assert not message.vector
    with pytest.raises(WrongArgument, match="must have a field /note2: optional string"):
        await made(revision_field="note2")


async def test_a_plain_text_is_a_field(order_class: Any) -> None:
    route = await made(record_format="text", text=None)
    message = found(order_class, route.write(b"w1", VECTOR))
    assert (message.text, list(message.vector)) == ("w1", VECTOR.tolist())


async def test_a_result_goes_into_a_message_of_the_document(order_class: Any) -> None:
    route = await made(text="/after/body", result_field="/after/vector")
    message = found(order_class, route.write(b'{"after": {"body": "a"}, "text": "b"}', VECTOR))
    assert (message.text, message.after.body, list(message.after.vector)) == ("b", "a", VECTOR.tolist())
    assert route.lacks_object(b'{"after": null}')
    assert not found(order_class, route.passed(b'{"after": null}')).HasField("after")


@pytest.mark.parametrize("text", ["2024-02-29T01:02:03Z", "2024-02-29T01:02:03.000Z", "1969-12-31T23:59:59.1234Z"])
async def test_a_time_is_a_text_in_utc(order_class: Any, text: str) -> None:
    route = await made()
    message = found(order_class, route.passed(json.dumps({"at": text, "took": "1.50s"}).encode()))
    assert message.at.ToDatetime() == datetime.datetime.fromisoformat(text).replace(tzinfo=None)
    assert message.took.ToMilliseconds() == 1500


async def test_bytes_are_base64(order_class: Any) -> None:
    message = found(order_class, (await made()).passed(b'{"raw": "AP8="}'))
    assert message.raw == b"\x00\xff"


@pytest.mark.parametrize(
    ("document", "kept"),
    [
        ({"big": "-9223372036854775808"}, {"big": -(2**63)}),
        ({"small": 3.0, "f": 0.1, "d": 0.1}, {"small": 3, "f": float(np.float32(0.1)), "d": 0.1}),
        ({"f": 2**30, "d": "-Infinity"}, {"f": 2**30, "d": -math.inf}),
        ({"f": 0.10000000149011612}, {"f": float(np.float32(0.1))}),
        ({"by_flag": {"true": "a"}, "by_id": {"-7": {}}}, {"by_flag": {True: "a"}}),
        ({"card": None, "cash": 0}, {"cash": 0}),
        ({"kind": 77}, {"kind": 77}),  # the number of no name
    ],
)
async def test_a_form_of_a_value_is_kept(order_class: Any, document: dict[str, Any], kept: dict[str, Any]) -> None:
    message = found(order_class, (await made()).passed(json.dumps(document).encode()))
    assert {name: getattr(message, name) for name in kept} == kept


async def test_null_is_a_value_where_the_schema_has_any_and_else_absent(order_class: Any) -> None:
    document = b'{"any": null, "note": null, "at": null, "count": null, "card": null, "parent": null}'
    message = found(order_class, (await made()).passed(document))
    assert [field.name for field, _ in message.ListFields()] == ["any"]
    assert message.any.WhichOneof("kind") == "null_value"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("none", "1"),
        ("none", "null"),
        ("byId", "{}"),  # the name of the schema is by_id
        ("text", "1"),
        ("text", "null"),  # would be an empty text
        ("big", "9223372036854775808"),
        ("big", "1.5"),
        ("big", "true"),
        ("big", '"01"'),
        ("big", '" 1"'),
        ("unsigned", "-1"),
        ("small", "2147483648"),
        ("small", '"1"'),
        ("small", "false"),
        ("small", "1.5"),
        ("d", "9007199254740993"),
        ("d", '"1"'),
        ("d", "true"),
        ("f", "1e39"),
        ("f", "1e-50"),
        ("f", "0.123456789012"),
        ("f", "16777217"),
        ("flag", "1"),
        ("flag", '"true"'),
        ("raw", '"AP8"'),
        ("raw", '"A_8="'),
        ("raw", '"AB=="'),
        ("kind", '"NONE"'),
        ("kind", "1"),
        ("kinds", "null"),
        ("kinds", '["NEW", null]'),
        ("kinds", '"NEW"'),
        ("items", "{}"),
        ("items", '[{"price": 1, "more": 1}]'),
        ("items", '[{"price": 0.123456789012}]'),
        ("counts", '{"a": null}'),
        ("counts", "[]"),
        ("by_id", '{"01": {}}'),
        ("by_id", '{"a": {}}'),
        ("by_flag", '{"True": "a"}'),
        ("card", '"1", "cash": 1'),
        ("at", "1709168523"),
        ("at", '"2024-02-29"'),
        ("at", '"2024-02-29T01:02:03+01:00"'),
        ("at", '"2024-02-29T01:02:03.1234567891Z"'),
        ("took", '"1.5"'),
        ("more", '{"a": 9007199254740993}'),
        ("more", "[]"),
        ("any", "9007199254740993"),
        ("count", "1.5"),
        ("parent", "[]"),
        ("parent", '{"parent": ' * 120 + "null" + "}" * 120),
    ],
)
async def test_a_value_that_would_be_another_is_refused_and_its_field_named(field: str, value: str) -> None:
    route, document = await made(), f'{{"{field}": {value}}}'.encode()
    with pytest.raises(InvalidRequest) as refused:
        route.write(document, VECTOR)
    assert re.search(rf"\b({field}|a|payment)\b", refused.value.message)
    assert unquoted_reason(refused.value) == "The record is not what the schema of out-value describes."
    with pytest.raises(InvalidRequest):
        route.passed(document)


@pytest.mark.parametrize(
    "value", [b"[]", b"3", b"null", b'"a"', b"{", b'{"d": 18446744073709551616}', b'{"d": 1, "d": 2}']
)
async def test_a_value_that_is_no_document_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidRequest):
        (await made()).passed(value)


@pytest.mark.parametrize(
    ("document", "missing"), [(b"{}", "text"), (b'{"text": null}', "text"), (b'{"text": "", "rows": [{}]}', "id")]
)
async def test_a_required_field_that_is_missing_is_refused(document: bytes, missing: str) -> None:
    route = await made(WITH_REQUIRED)
    with pytest.raises(InvalidRequest, match=missing):
        route.write(document, VECTOR)
    assert route.write(b'{"text": "a", "rows": [{"id": 0}]}', None)[6:] == b"\x0a\x01a\x12\x02\x08\x00"


def message(of_result: str) -> str:
    return f'syntax = "proto3"; message A {{ {of_result} }}'


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (None, "no schema for out-value"),
        (message("string text = 1;"), "must have a field /vector: repeated float"),
        (message("repeated double vector = 1;"), "must have a field /vector"),
        (message("float vector = 1;"), "must have a field /vector"),
        (message("map<string, float> vector = 1;"), "must have a field /vector"),
        (message("message B { repeated float vector = 1; } repeated B b = 1;"), "must have a field /vector"),
        ('syntax = "proto3";', "has no message"),
        ("message {", "protoc"),
    ],
)
async def test_a_schema_without_the_result_is_refused_at_start(schema: str | None, reason: str) -> None:
    with pytest.raises(WrongArgument, match=reason):
        await made(schema)


async def test_what_cannot_be_in_protobuf_is_refused_at_start() -> None:
    with pytest.raises(WrongArgument, match="AVRO, not PROTOBUF"):
        await made("{}", kind="AVRO")
    with pytest.raises(WrongArgument, match="result_field must name a field"):
        await made(result_field="")
    of_list = message("message B { repeated float vector = 1; } repeated B b = 1;")
    with pytest.raises(WrongArgument, match="must have a field /b/vector"):
        await made(of_list, result_field="/b/vector")
    with pytest.raises(WrongArgument, match="must have a field /score: optional float"):
        await made(message("float score = 1;"), task="rerank", query="q", result_field="score")


CLASSES = "string label = 1; float score = 2; repeated string labels = 3; repeated float scores = 4;"
SPAN = "optional int32 start = 5; optional int32 end = 6;"
RESULTS: list[tuple[str, str, Any]] = [
    ("rerank", "optional float r = 1;", np.float32(0.1)),
    ("classify", f"message R {{ {CLASSES} }} R r = 1;", {"label": "a", "score": np.float32(0.1)}),
    (
        "token_classify",
        f"message R {{ {CLASSES} {SPAN} }} repeated R r = 1;",
        [{"label": "a", "score": np.float32(0.1), "start": 0, "end": 2}],
    ),
    (
        "embed_sparse",
        "message R { repeated int32 indices = 1; repeated float values = 2; } R r = 1;",
        {"indices": np.array([7], np.uint32), "values": np.array([0.1], np.float32)},
    ),
    (
        "generate",
        "message R { optional string text = 1; string finish = 2; repeated int32 tokens = 3; } R r = 1;",
        {"text": "b", "finish": "stop", "tokens": [1, 2]},
    ),
]


@pytest.mark.parametrize(("task", "of_result", "result"), RESULTS)
async def test_results_of_every_task_fit_the_schema_of_the_same_shape(task: str, of_result: str, result: Any) -> None:
    query: Any = {"query": "q"} if task == "rerank" else {}
    route = await made(message(of_result), task=task, result_field="r", **query)
    reader: Any = message_class(compiled([("a.proto", message(of_result))]))
    read = reader.FromString(route.write(b"{}", result)[6:])
    assert is_same(json.loads(plain_json({"r": result})), shown(read))
    if task != "token_classify":
        assert read.HasField("r")
        assert not reader.FromString(route.write(b"{}", None)[6:]).HasField("r")


async def test_chunks_are_a_list_or_a_record_each() -> None:
    chunk = {"start": 0, "end": 2, "embedding": VECTOR}
    fields = "int32 start = 1; int32 end = 2; repeated float embedding = 3;"
    of_list = message(f"message C {{ {fields} }} repeated C vector = 1;")
    reader: Any = message_class(compiled([("a.proto", of_list)]))
    route = await made(of_list, chunk_tokens=64)
    read = reader.FromString(route.write(b"{}", [chunk, chunk])[6:])
    assert [(one.start, one.end, list(one.embedding)) for one in read.vector] == [(0, 2, VECTOR.tolist())] * 2
    of_each = message(f"message C {{ {fields} int32 chunk = 4; int32 chunks = 5; string text = 6; }} C vector = 1;")
    reader = message_class(compiled([("a.proto", of_each)]))
    route = await made(of_each, chunk_tokens=64, chunk_output="records")
    (value,) = route.write_each(b"{}", [{"chunk": 0, "chunks": 1, "text": "ab", **chunk}])
    assert is_same({"text": "ab", "end": 2}, shown(reader.FromString(value[6:]).vector))
