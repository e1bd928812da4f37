"""JSON in, Avro out: by the schema that the output topic has. Read by fastavro; the registry is kept in memory."""

import json
from io import BytesIO
from typing import Any

import fastavro
import numpy as np
import pytest
from confluent_kafka.schema_registry import Schema
from hypothesis import given
from hypothesis import strategies as st

from penstock.producer.errors import InvalidRequest, WrongArgument
from penstock.producer.wire.messages import NO_OPTIONS
from penstock.worker.requests.record_fields import unquoted_reason
from penstock.worker.routes.formats import format_of
from penstock.worker.routes.pointer import Pointer
from penstock.worker.routes.record_format import RecordFormat
from penstock.worker.routes.revision_field import RevisionField
from penstock.worker.routes.settings import RouteSettings

VECTOR = np.array([0.1, -2.5], np.float32)
VECTORS = {"type": "array", "items": "float"}


class Registry:
    """A registry with one subject's schema, or none."""

    def __init__(self, schema: Any, kind: str = "AVRO") -> None:
        self._latest = None if schema is None else (7, Schema(json.dumps(schema), kind))
        self.registered: Any = None

    async def latest(self, subject: str) -> Any:
        assert subject == "out-value"
        return self._latest

    async def referenced(self, schema: Any) -> list[tuple[str, str]]:
        return []

    async def register(self, subject: str, schema: Any) -> int:
        assert subject == "out-value"
        self.registered = json.loads(schema.schema_str)
        return 9


def document(*fields: dict[str, Any], result: Any = VECTORS, **changes: Any) -> dict[str, Any]:
    of_result = {"name": "result", "type": ["null", result], "default": None} | changes
    return {"type": "record", "name": "Order", "fields": [*fields, of_result]}


ORDER = document(
    {"name": "n", "type": ["long", "double"]},
    {"name": "text", "type": ["null", "string"], "default": None},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "string"}}, "default": {}},
    {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
)


async def made(schema: Any, *, task: str = "embed", registry: Registry | None = None, **given: Any) -> RecordFormat:
    fields = {"input_topic": "in", "output_topic": "out", "text": "text", "output_format": "avro", "task": task} | given
    settings = RouteSettings.model_validate(fields)
    kept: Any = registry or Registry(schema)
    name = settings.revision_field
    revision = None if name is None else RevisionField(Pointer.parse(name).names[-1], "m@1")
    found = format_of(settings, task, NO_OPTIONS, kept, revision, is_chunked=False)
    await found.check()
    return found


def found(schema: Any, value: bytes, schema_id: int = 7) -> Any:
    assert value[:5] == b"\0" + schema_id.to_bytes(4, "big")
    file = BytesIO(value[5:])
    record = fastavro.schemaless_reader(file, fastavro.parse_schema(schema), None)
    assert not file.read()
    return record


@given(
    st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False),
    st.none() | st.text(),
    st.dictionaries(st.text(), st.lists(st.text())),
)
async def test_another_reader_finds_the_document_and_the_result(n: Any, text: Any, tags: Any) -> None:
    order = {"n": n, "text": text, "at": 1700000000000, "tags": tags, "kind": "OLD"}
    of_time = [one | {"type": "long"} if one["name"] == "at" else one for one in ORDER["fields"]]
    plain = ORDER | {"fields": of_time}
    route, value = await made(ORDER), json.dumps(order).encode()
    enriched = found(plain, route.write(value, VECTOR))
    assert enriched.pop("result") == VECTOR.tolist()
    assert enriched == order
    assert found(plain, route.passed(value)) == order | {"result": None}
    assert found(plain, route.write(value, None)) == order | {"result": None}


async def test_a_result_that_is_all_has_its_own_schema() -> None:
    registry = Registry(None)
    route = await made(None, registry=registry, result_field="")
    assert registry.registered == VECTORS
    assert found(VECTORS, route.write(b'{"text": "a"}', VECTOR), 9) == VECTOR.tolist()
    with pytest.raises(InvalidRequest, match="has no text"):
        route.passed(b"{}")


async def test_a_field_names_the_model_of_a_result() -> None:
    model = {"name": "made_by", "type": ["null", "string"], "default": None}
    route = await made(document(model), revision_field="made_by")
    assert found(document(model), route.write(b"{}", VECTOR)) == {"made_by": "m@1", "result": VECTOR.tolist()}
    assert found(document(model), route.write(b'{"made_by": "m@0"}', None)) == {"made_by": None, "result": None}
    with pytest.raises(WrongArgument, match="must have a field /made_by with null as its default"):
        await made(document(), revision_field="made_by")


async def test_a_plain_text_is_a_field() -> None:
    schema = document({"name": "text", "type": "string"})
    route = await made(schema, record_format="text", text=None)
    assert found(schema, route.write(b"w1", VECTOR)) == {"text": "w1", "result": VECTOR.tolist()}


async def test_a_result_goes_into_an_object_whose_type_is_defined_before() -> None:
    row = {"type": "record", "name": "Row", "fields": document()["fields"]}
    fields = [{"name": "before", "type": ["null", row]}, {"name": "after", "type": ["null", "Row"]}]
    schema = {"type": "record", "name": "Event", "fields": fields}
    route = await made(schema, text="/after/text", result_field="/after/result")
    delete = b'{"before": {"result": [1]}, "after": null}'
    assert route.lacks_object(delete)
    assert found(schema, route.passed(delete)) == {"before": {"result": [1.0]}, "after": None}
    enriched = found(schema, route.write(b'{"before": null, "after": {}}', VECTOR))
    assert enriched == {"before": None, "after": {"result": VECTOR.tolist()}}


@pytest.mark.parametrize(
    "value",
    [
        b'{"n": true, "at": 1, "kind": "OLD"}',
        b'{"n": 1, "at": 1.5, "kind": "OLD"}',
        b'{"n": 1, "at": 1, "kind": "NONE"}',
        b'{"n": 1, "at": 9223372036854775808, "kind": "OLD"}',
        b'{"n": 1, "kind": "OLD"}',
        b'{"n": 1, "at": 1, "kind": "OLD", "more": 1}',
        b'{"n": 1, "at": "2024", "kind": "OLD"}',
        b'{"n": 1, "n": 2, "at": 1, "kind": "OLD"}',
        b'{"n": 18446744073709551616, "at": 1, "kind": "OLD"}',
        b"[]",
        b"3",
    ],
)
async def test_a_document_that_the_schema_does_not_describe_is_refused(value: bytes) -> None:
    route = await made(ORDER)
    with pytest.raises(InvalidRequest) as refused:
        route.write(value, VECTOR)
    assert "2024" not in unquoted_reason(refused.value)  # as logs have it
    with pytest.raises(InvalidRequest):
        route.passed(value)


@pytest.mark.parametrize("number", [1e300, -1e39])
async def test_a_number_that_is_too_large_for_a_float_is_refused(number: float) -> None:
    schema = document({"name": "n", "type": {"type": "array", "items": "float"}}, {"name": "d", "type": "double"})
    route = await made(schema)
    with pytest.raises(InvalidRequest, match="is not what the schema"):
        route.write(b'{"n": [1, %s], "d": 1}' % str(number).encode(), VECTOR)
    kept = route.write(b'{"n": [1, 1e38], "d": 1e300}', VECTOR)
    assert found(schema, kept)["d"] == 1e300


BYTES = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (None, "no schema for out-value"),
        ({"type": "record", "name": "A", "fields": []}, "must have a field /result"),
        (document(result="float"), "must have a field /result"),
        (document(type=VECTORS), "must have a field /result"),
        (document(default=[]), "must have a field /result"),
        (document({"name": "price", "type": BYTES}), "has the type bytes"),
        ("string", "must have a field /result"),
    ],
)
async def test_a_schema_without_the_result_is_refused_at_start(schema: Any, reason: str) -> None:
    with pytest.raises(WrongArgument, match=reason):
        await made(schema)


async def test_a_schema_of_another_kind_is_refused_at_start() -> None:
    with pytest.raises(WrongArgument, match="JSON, not AVRO"):
        await made(None, registry=Registry({}, "JSON"))


@pytest.mark.parametrize("task", ["classify", "token_classify", "generate", "rerank", "embed_sparse"])
async def test_results_of_every_task_fit_the_schema_of_the_same_shape(task: str) -> None:
    from penstock.worker.routes.result_types import result_type

    query: Any = {"query": "q"} if task == "rerank" else {}
    await made(document(result=result_type(task, NO_OPTIONS, "any")), task=task, **query)
