"""Records in Avro: what another reader finds in them, and what stays as it was."""

import json
from io import BytesIO
from typing import Any

import fastavro
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.producer.errors import InvalidRequest, WrongArgument
from penstock.producer.wire.messages import NO_OPTIONS
from penstock.worker.routes.avro_schema import AvroSchema
from penstock.worker.routes.pointer import Pointer
from penstock.worker.routes.result_types import result_type

INNER = {
    "type": "record",
    "name": "Inner",
    "fields": [{"name": "x", "type": "double"}, {"name": "t", "type": "string"}],
}
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "n", "type": "long"},
        {"name": "inner", "type": ["null", INNER]},
        {"name": "any", "type": ["null", "int", "long", "double", "string", "bytes"]},
        {"name": "last", "type": {"type": "map", "values": {"type": "array", "items": "float"}}},
    ],
}
LONGS = st.integers(-(2**63), 2**63 - 1)
ORDERS = st.fixed_dictionaries(
    {
        "n": LONGS,
        "inner": st.none() | st.fixed_dictionaries({"x": st.floats(allow_nan=False), "t": st.text()}),
        "any": st.none() | LONGS | st.floats(allow_nan=False) | st.text() | st.binary(),
        "last": st.dictionaries(st.text(), st.lists(st.floats(width=32, allow_nan=False))),
    }
)
RESULTS: dict[str, Any] = {
    "embed": np.array([0.1, -2.5], np.float32),
    "rerank": np.float32(0.3),
    "classify": {"label": "a", "score": np.float32(0.5), "labels": ["a"], "scores": np.array([0.5], np.float32)},
    "embed_sparse": {"indices": np.array([7], np.uint32), "values": np.array([0.5], np.float32)},
    "token_classify": [{"label": "a", "score": np.float32(0.5), "start": 1, "end": 2}],
    "generate": {"text": "b", "finish": "stop", "tokens": [1, 2]},
}


def written(schema: Any, value: Any) -> bytes:
    file = BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(schema), value)
    return file.getvalue()


def found(schema: str, body: bytes) -> Any:
    return fastavro.schemaless_reader(BytesIO(body), fastavro.parse_schema(json.loads(schema)), None)


def made(place: str, task: str = "embed", schema: Any = ORDER) -> AvroSchema:
    pointer = Pointer.parse(place)
    return AvroSchema(json.dumps(schema), [], pointer, result_type(task, NO_OPTIONS, "result"))


@given(ORDERS, st.lists(st.floats(width=32, allow_nan=False)), st.booleans())
def test_another_reader_finds_the_record_and_the_result(order: Any, vector: list[float], is_inner: bool) -> None:
    schema, body = made("/inner/result" if is_inner else "result"), written(ORDER, order)
    assert schema.read(body) == order
    if is_inner and order["inner"] is None:
        with pytest.raises(InvalidRequest, match="no record"):
            schema.write(body, np.array(vector, np.float32))
        return
    record = found(schema.output, schema.write(body, np.array(vector, np.float32)))
    assert (record["inner"] if is_inner else record).pop("result") == vector
    assert record == order


@given(ORDERS, st.data())
def test_bytes_that_are_not_of_the_schema_are_refused_or_read(order: Any, data: st.DataObject) -> None:
    body = written(ORDER, order)
    cut = body[: data.draw(st.integers(0, len(body) - 1))]
    with pytest.raises(InvalidRequest):
        made("result").read(cut)
    with pytest.raises(InvalidRequest, match="bytes behind"):
        made("result").read(body + b"\x00")


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    try:
        made("result").read(body)
    except InvalidRequest:
        return


@pytest.mark.parametrize("task", RESULTS)
def test_results_of_every_task_are_read_by_another_reader(task: str) -> None:
    body = written(ORDER, {"n": 1, "inner": None, "any": None, "last": {}})
    for place in ("result", ""):
        schema = made(place, task)
        value = found(schema.output, schema.write(body, RESULTS[task]))
        result = value["result"] if place else value
        first = result[0] if task in ("embed", "token_classify") else result
        match first:
            case {"label": label, "score": score}:
                assert (label, score) == ("a", 0.5)
            case {"indices": indices, "values": values}:
                assert (indices, values) == ([7], [0.5])
            case {"text": text, "tokens": tokens}:
                assert (text, tokens) == ("b", [1, 2])
            case _:
                np.testing.assert_equal(np.float32(first), np.float32(0.1 if task == "embed" else 0.3))


KIND = {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}
ROW = {
    "type": "record",
    "name": "Value",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "body", "type": ["null", "string"], "default": None},
        {"name": "kind", "type": KIND},
        {"name": "tags", "type": {"type": "array", "items": {"type": "record", "name": "Tag", "fields": []}}},
        {"name": "parent", "type": ["null", "Value"], "default": None},
    ],
    "connect.name": "shop.articles.Value",
}
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "namespace": "shop.articles",
    "fields": [
        {"name": "before", "type": ["null", ROW], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "op", "type": "string"},
    ],
    "connect.name": "shop.articles.Envelope",
}
AFTER = {"id": 1, "body": "w", "kind": "OLD", "tags": [], "parent": None}
ROWS: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {
        "id": LONGS,
        "body": st.none() | st.text(),
        "kind": st.sampled_from(["NEW", "OLD"]),
        "tags": st.lists(st.just({}), max_size=2),
    }
).map(lambda row: row | {"parent": row | {"parent": None}})


@given(st.none() | ROWS, ROWS)
def test_the_row_after_a_change_gets_the_result_and_the_row_before_stays(before: Any, after: Any) -> None:
    event = {"before": before, "after": after, "op": "u"}
    schema, body = made("/after/embedding", schema=ENVELOPE), written(ENVELOPE, event)
    assert schema.read(body) == event
    record = found(schema.output, schema.write(body, np.array([0.5], np.float32)))
    assert record["after"].pop("embedding") == [0.5]
    assert record == event
    [type_after] = [one["type"] for one in json.loads(schema.output)["fields"] if one["name"] == "after"]
    assert (type_after[1]["name"], type_after[1]["connect.name"]) == (
        "Value_embedding",
        "shop.articles.Value_embedding",
    )


def test_a_field_that_was_added_to_a_copy_does_not_copy_it_again() -> None:
    first = made("/after/embedding", schema=ENVELOPE)
    body = first.write(written(ENVELOPE, {"before": None, "after": AFTER, "op": "c"}), RESULTS["embed"])
    second = made("/after/label", "classify", json.loads(first.output))
    after = found(second.output, second.write(body, RESULTS["classify"]))["after"]
    assert after["label"]["label"] == "a"
    assert after["embedding"] == [np.float32(0.1), -2.5]


def test_a_record_that_passes_with_null_is_of_the_derived_schema() -> None:
    schema, body = made("result"), written(ORDER, {"n": 1, "inner": None, "any": None, "last": {}})
    assert found(schema.output, schema.write(body, None))["result"] is None


@pytest.mark.parametrize(
    ("place", "schema", "reason"),
    [
        ("n", ORDER, "has a field 'n' already"),
        ("/n/result", ORDER, "must be a record"),
        ("/none/result", ORDER, "has no field 'none'"),
        ("result", "string", "must be a record"),
        ("result", {"type": "record", "name": "A"}, "cannot be used"),
        ("not a name", ORDER, "cannot be the name"),
        (
            "result",
            {"type": "record", "name": "T", "fields": [{"name": "down", "type": ["null", "T"]}]},
            "type of several fields",
        ),
        (
            "/after/result",  # its definition would have to move
            {
                "type": "record",
                "name": "E",
                "fields": [{"name": "after", "type": INNER}, {"name": "before", "type": ["null", "Inner"]}],
            },
            "type of several fields",
        ),
    ],
)
def test_a_schema_that_has_no_place_is_refused_with_the_reason(place: str, schema: Any, reason: str) -> None:
    with pytest.raises(WrongArgument, match=reason):
        made(place, schema=schema)
