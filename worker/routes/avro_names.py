"""Named types of Avro schemas: a record that other fields refer to gets a copy where it is to have a field more."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock.worker.routes.result_types import AvroType

_NAMED = ("record", "enum", "fixed", "error")
_CONNECT_NAME = "connect.name"  # the schema's name for Kafka Connect, which takes it for the record's
_Types = Mapping[str, tuple[dict[str, Any], str]]  # definitions and their namespaces, by full name


def with_own_records(schema: AvroType, names: Sequence[str]) -> AvroType:
    """A schema of the same bytes, whose records on the way to a new field are defined there, not referred to.

    `names`: as in `with_field`. Debezium's `after` refers to the record that `before` defines. Its copy has a name of
    its own, and refers to the types that the record defines.
    """
    return _own(schema, names, dict(_definitions(schema, "")), "")


def _own(schema: AvroType, names: Sequence[str], types: _Types, space: str) -> AvroType:
    if isinstance(schema, list):
        return [_own(one, names, types, space) for one in schema]
    if isinstance(schema, str):
        definition, space = types.get(_full_name(schema, space), ({}, ""))
        if definition.get("type") != "record":
            return schema
        schema = _copy(definition, space, names[-1])
    if not isinstance(schema, dict) or schema.get("type") != "record" or len(names) == 1:
        return schema
    inner = _space(schema, space)
    fields = [
        field | {"type": _own(field["type"], names[1:], types, inner)} if field["name"] == names[0] else field
        for field in schema["fields"]
    ]
    return schema | {"fields": fields}


def _copy(record: dict[str, Any], space: str, suffix: str) -> dict[str, Any]:
    name = f"{record['name'].rpartition('.')[2]}_{suffix}"
    fields = [field | {"type": _referring(field["type"], space)} for field in record["fields"]]
    copied = {key: value for key, value in record.items() if key != "aliases"}
    copied |= {"name": name, "namespace": space, "fields": fields}
    return copied | ({_CONNECT_NAME: f"{record[_CONNECT_NAME]}_{suffix}"} if _CONNECT_NAME in record else {})


def _referring(schema: AvroType, space: str) -> AvroType:
    """A type that refers to what it has defined."""
    if isinstance(schema, list):
        return [_referring(one, space) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") in _NAMED:
        return _full_name(schema["name"], _space(schema, space))
    return schema | {name: _referring(schema[name], space) for name in ("type", "items", "values") if name in schema}


def _definitions(schema: AvroType, space: str) -> Iterator[tuple[str, tuple[dict[str, Any], str]]]:
    if isinstance(schema, list):
        for one in schema:
            yield from _definitions(one, space)
    if not isinstance(schema, dict):
        return
    if schema.get("type") in _NAMED:
        space = _space(schema, space)
        yield _full_name(schema["name"], space), (schema, space)
    for name in ("type", "items", "values"):
        yield from _definitions(schema.get(name), space)
    for field in schema.get("fields", []):
        yield from _definitions(field["type"], space)


def _space(named: dict[str, Any], space: str) -> str:
    """The namespace of a named type, in which its own types are named."""
    own, dot, _ = str(named["name"]).rpartition(".")
    return own if dot else str(named.get("namespace", space))


def _full_name(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"
