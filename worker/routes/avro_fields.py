"""Avro schemas as JSON: adding a field to a record, and leaving out logical types."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.producer.errors import WrongArgument
from penstock.worker.routes.avro_names import with_own_records
from penstock.worker.routes.result_types import AvroType

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WITH_TYPES = ("type", "items", "values")  # of a type as a dict: what it is made of


def with_field(schema: AvroType, names: Sequence[str], result: AvroType) -> tuple[AvroType, AvroType]:
    """A schema with a nullable field behind the last of a record; and what of the schema precedes that field.

    `names`: the fields on the way to the record, and the new one's. Where a value's type is a union, its one record.

    Raises:
        WrongArgument: there is no such record, it has the field, or it is also the type of other values.
    """
    if _NAME.fullmatch(names[-1]) is None:
        raise WrongArgument(
            f"{names[-1]!r} cannot be the name of a field in Avro: letters, digits and _, no digit first."
        )
    schema = with_own_records(schema, names)
    derived, start, record = _extended(schema, names, result)
    simple = str(record.get("name")).rpartition(".")[2]
    if any(one.rpartition(".")[2] == simple for one in referenced_names(schema)):
        raise WrongArgument(
            f"The record {simple} is the type of several fields, so it can have no field for the result."
        )
    return derived, start


def without_logical_types(schema: AvroType) -> AvroType:
    """The schema of the same bytes, with no logical type but decimals."""
    if isinstance(schema, list):
        return [without_logical_types(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: value for name, value in schema.items() if name != "logicalType" or value == "decimal"}
    kept |= {name: without_logical_types(kept[name]) for name in _WITH_TYPES if name in kept}
    if "fields" in kept:
        kept["fields"] = [field | {"type": without_logical_types(field["type"])} for field in kept["fields"]]
    return kept


def _extended(schema: AvroType, names: Sequence[str], result: AvroType) -> tuple[AvroType, AvroType, dict[str, Any]]:
    """The schema with the field, what of it precedes the field, and the record, as it was."""
    if isinstance(schema, list):
        records = [n for n, one in enumerate(schema) if isinstance(one, dict) and one.get("type") == "record"]
        if len(records) != 1:
            raise WrongArgument(f"The union that is to have {names[0]!r} must have one record, which it defines.")
        derived, start, record = _extended(schema[records[0]], names, result)
        return _replaced(schema, records[0], derived), _replaced(schema, records[0], start), record
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise WrongArgument(f"What is to have {names[0]!r} must be a record, which the schema defines there.")
    fields = schema["fields"]
    found = [n for n, field in enumerate(fields) if field["name"] == names[0]]
    if len(names) > 1:
        if not found:
            raise WrongArgument(f"The record {schema.get('name')} has no field {names[0]!r}.")
        inner, start, record = _extended(fields[found[0]]["type"], names[1:], result)
        derived_fields = _replaced(fields, found[0], fields[found[0]] | {"type": inner})
        start_fields = [*fields[: found[0]], fields[found[0]] | {"type": start}]
        return schema | {"fields": derived_fields}, schema | {"fields": start_fields}, record
    if found:
        raise WrongArgument(f"The record {schema.get('name')} has a field {names[0]!r} already.")
    added = {"name": names[0], "type": ["null", result], "default": None}
    return schema | {"fields": [*fields, added]}, schema, schema


def _replaced(values: Sequence[Any], n: int, value: Any) -> list[Any]:
    return [*values[:n], value, *values[n + 1 :]]


def referenced_names(schema: AvroType) -> Iterator[str]:
    """The names of types, wherever they are used."""
    if isinstance(schema, str):
        yield schema
    elif isinstance(schema, list):
        for one in schema:
            yield from referenced_names(one)
    elif isinstance(schema, dict):
        for name in _WITH_TYPES:
            yield from referenced_names(schema.get(name, []))
        for field in schema.get("fields", []):
            yield from referenced_names(field["type"])
