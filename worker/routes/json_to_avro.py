"""JSON in, Avro out: documents by the schema of the output topic."""

import json
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException, UnknownType
from fastavro.validation import ValidationError

from penstock.producer.errors import WrongArgument
from penstock.worker.routes.avro_fields import referenced_names, without_logical_types
from penstock.worker.routes.avro_names import with_own_records
from penstock.worker.routes.json_to_framed import DocumentWriter, NotDescribed, WriterKind
from penstock.worker.routes.pointer import Pointer
from penstock.worker.routes.result_types import AvroType

_NOT_IN_JSON = ("bytes", "fixed")
_INFINITE = (b"\0\0\x80\x7f", b"\0\0\x80\xff")  # what fastavro makes of a number that is too large for a float


class AvroDocuments(DocumentWriter):
    """Documents of JSON in Avro, by one schema."""

    def __init__(self, text: str, referenced: Sequence[tuple[str, str]], fields: Mapping[Pointer, AvroType]) -> None:
        """As `WriterKind.writer`."""
        self._schema = _parsed(text, [one for _, one in referenced], fields)

    def written(self, document: Any, place: Pointer, fields: Mapping[str, Any]) -> bytes:
        if fields:
            place.find(document).update(fields)
        file = BytesIO()
        try:
            fastavro.validate(document, self._schema)
            fastavro.schemaless_writer(file, self._schema, document, strict_allow_default=True)
            if any(one in file.getvalue() for one in _INFINITE):
                self._require_finite(file.getvalue())
        except (ValidationError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            field = f" at {error.errors[0].field}" if isinstance(error, ValidationError) and error.errors else ""
            raise NotDescribed(f"{field}. Raised: {error}") from error
        return file.getvalue()

    def _require_finite(self, written: bytes) -> None:
        """Raise ValueError if a number was written as infinite, which JSON does not have."""
        document = fastavro.schemaless_reader(BytesIO(written), self._schema, None)
        json.dumps(document, allow_nan=False)


TO_AVRO = WriterKind("AVRO", AvroDocuments, json.dumps)


def _parsed(text: str, referenced: Sequence[str], fields: Mapping[Pointer, AvroType]) -> Any:
    """Raises WrongArgument: it cannot be the schema of JSON documents with such fields of a result."""
    try:
        parsed, names = json.loads(text), dict[str, Any]()
        for place, kind in fields.items():
            _require_field(parsed, place, kind)
        others = [json.loads(one) for one in referenced]
        if wrong := [kind for one in (*others, parsed) for kind in referenced_names(one) if kind in _NOT_IN_JSON]:
            raise WrongArgument(f"The schema has the type {wrong[0]}, which JSON does not have.")
        for one in others:
            fastavro.parse_schema(without_logical_types(one), names)
        return fastavro.parse_schema(without_logical_types(parsed), names)
    except WrongArgument:
        raise
    except (SchemaParseException, UnknownType, ValueError, TypeError, KeyError, AttributeError) as error:
        raise WrongArgument(f"The schema cannot be used: {error!r}") from error


def _require_field(schema: AvroType, place: Pointer, kind: AvroType) -> None:
    """Raise WrongArgument unless the schema has a nullable field of a type at a place."""
    found, default = with_own_records(schema, place.names), ...
    for name in place.names:
        records = [one for one in (found if isinstance(found, list) else [found]) if isinstance(one, dict)]
        fields = {field["name"]: field for one in records for field in one.get("fields", [])}
        field = fields.get(name, {"type": "none"})
        found, default = field["type"], field.get("default", ...)
    is_nullable = isinstance(found, list) and found[0] == "null" and default is None
    if not is_nullable or [_shape(one) for one in found[1:]] != [_shape(kind)]:
        raise WrongArgument(
            f"The schema must have a field {place!s} with null as its default, of the type "
            f"{json.dumps(['null', kind])}. It is {json.dumps(found)}."
        )


def _shape(schema: AvroType) -> Any:
    """A type without names and documentation."""
    if isinstance(schema, list):
        return [_shape(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    match schema["type"]:
        case "array":
            return {"array": _shape(schema["items"])}
        case "record":
            return {field["name"]: _shape(field["type"]) for field in schema["fields"]}
        case inner:
            return _shape(inner)
