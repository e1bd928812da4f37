"""JSON or plain text in, Avro out: by a schema that the output topic has, or the result's own where it is all."""

import json
import struct
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException, UnknownType
from fastavro.validation import ValidationError

from penstock.producer.errors import InvalidRequest, WrongArgument
from penstock.producer.wire.plain_rows import PlainRow
from penstock.worker.routes.avro_fields import referenced_names, without_logical_types
from penstock.worker.routes.avro_names import with_own_records
from penstock.worker.routes.json_format import read_exactly
from penstock.worker.routes.pointer import Pointer
from penstock.worker.routes.record_format import JsonFormat, RecordFormat
from penstock.worker.routes.result_types import AvroType, plain_values
from penstock.worker.routes.revision_field import RevisionField
from penstock.worker.routes.schema_registry import Schema, SchemaRegistry

_HEAD = struct.Struct(">bI")  # see framed_format.py
_NOT_IN_JSON = ("bytes", "fixed")
_INFINITE = (b"\0\0\x80\x7f", b"\0\0\x80\xff")  # what fastavro makes of a number that is too large for a float
_MAX_REASON_CHARS = 1000  # an error quotes the value and the type


class JsonToAvro(RecordFormat):
    """The schema is the latest of `<output topic>-value` at start. Without a place for the result it is registered."""

    def __init__(
        self,
        registry: SchemaRegistry,
        inner: RecordFormat,
        output_topic: str,
        place: Pointer,
        result: AvroType,
        revision: RevisionField | None,
    ) -> None:
        """`inner`: the format of the input, JSON or text. `result`: the type of the result, which goes to `place`."""
        self._registry, self._inner, self._place, self._result = registry, inner, place, result
        self._revision = revision
        self._subject = f"{output_topic}-value"
        self._schema: Any = None
        self._head = b""

    async def check(self) -> None:
        if self._place.names:
            found = await self._registry.latest(self._subject)
            if found is None:
                raise WrongArgument(f"The schema registry has no schema for {self._subject}. Register one before.")
            schema_id, schema = found
            fields = {self._place: self._result}
            if self._revision is not None:
                fields[Pointer((*self._place.parent.names, self._revision.name))] = "string"
            self._schema = _parsed(schema, await self._registry.referenced(schema), fields)
        else:
            schema_id = await self._registry.register(self._subject, _registered(self._result))
            self._schema = fastavro.parse_schema(self._result)
        self._head = _HEAD.pack(0, schema_id)

    def read(self, value: bytes) -> Any:
        return self._inner.read(value)

    def lacks_object(self, value: bytes) -> bool:
        return self._inner.lacks_object(value)

    def write(self, original: bytes, result: PlainRow | None) -> bytes:
        if not self._place.names:
            return self._written(plain_values(result))
        document = self._document(original)
        parent = self._place.parent.find(document)
        if not isinstance(parent, dict):
            raise InvalidRequest(f"There is no object at {str(self._place)!r} for the result.")
        parent[self._place.names[-1]] = plain_values(result)
        if self._revision is not None:
            parent[self._revision.name] = None if result is None else self._revision.model
        return self._written(document)

    def passed(self, original: bytes) -> bytes:
        if not self._place.names:
            raise InvalidRequest("The record has no text, and the result is the whole value.")
        return self._written(self._document(original))

    def _document(self, original: bytes) -> Any:
        return read_exactly(original) if isinstance(self._inner, JsonFormat) else {"text": self.read(original)}

    def _written(self, document: Any) -> bytes:
        file = BytesIO()
        file.write(self._head)
        try:
            fastavro.validate(document, self._schema)
            fastavro.schemaless_writer(file, self._schema, document, strict_allow_default=True)
            if any(one in file.getvalue() for one in _INFINITE):
                self._require_finite(file.getvalue())
        except (ValidationError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            field = f" at {error.errors[0].field}" if isinstance(error, ValidationError) and error.errors else ""
            reason = f"The record is not what the schema of {self._subject} describes{field}."
            raise InvalidRequest(f"{reason} Raised: {error}"[:_MAX_REASON_CHARS]) from error
        return file.getvalue()

    def _require_finite(self, written: bytes) -> None:
        """Raise ValueError if a number was written as infinite, which JSON does not have."""
        document = fastavro.schemaless_reader(BytesIO(written[_HEAD.size :]), self._schema, None)
        json.dumps(document, allow_nan=False)


def _registered(result: AvroType) -> Schema:
    from confluent_kafka.schema_registry import Schema as Registered

    return Registered(json.dumps(result), "AVRO")


def _parsed(schema: Schema, referenced: Sequence[tuple[str, str]], fields: Mapping[Pointer, AvroType]) -> Any:
    """Raises WrongArgument: it cannot be the schema of JSON documents with such fields of a result."""
    try:
        if schema.schema_type != "AVRO":
            raise WrongArgument(f"The schema of the output is {schema.schema_type}, not AVRO.")
        parsed, names = json.loads(schema.schema_str), dict[str, Any]()
        for place, kind in fields.items():
            _require_field(parsed, place, kind)
        others = [json.loads(text) for _, text in referenced]
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
