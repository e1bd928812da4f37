"""JSON in, Protobuf out: documents by the first message of the output topic's schema, with no value changed."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import DecodeError, EncodeError

from penstock.producer.errors import WrongArgument
from penstock.worker.routes.json_to_framed import DocumentWriter, NotDescribed, WriterKind
from penstock.worker.routes.pointer import Pointer
from penstock.worker.routes.protobuf_schema import FIELD_TYPES, compiled, message_class, set_fields
from penstock.worker.routes.result_types import AvroType

_FIRST_MESSAGE = b"\0"  # the indexes of the message in its file


class ProtobufDocuments(DocumentWriter):
    """Documents by one schema. Protobuf's own reader of JSON takes more than it keeps: what it took is compared."""

    def __init__(self, text: str, referenced: Sequence[tuple[str, str]], fields: Mapping[Pointer, AvroType]) -> None:
        """As `WriterKind.writer`."""
        files = compiled([*referenced, ("schema.proto", text)])
        if not files[-1].message_type:
            raise WrongArgument("The schema has no message.")
        self._message = message_class(files)
        for place, kind in fields.items():
            _require_field(self._message.DESCRIPTOR, place, kind)

    def written(self, document: Any, place: Pointer, fields: Mapping[str, Any]) -> bytes:
        try:
            if not isinstance(document, dict):
                raise NotDescribed(". Raised: the document is no object")
            message = ParseDict(document, self._message())
            found = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
            _require_same(document, found, "")
            parent: Any = message
            for name in place.names:
                parent = getattr(parent, name)
            set_fields(parent, fields)
            body: bytes = message.SerializeToString()
            self._message.FromString(body)  # fails if there are more levels of nesting than readers take
        except (ParseError, EncodeError, DecodeError, ValueError, TypeError, AttributeError) as error:
            if isinstance(error, NotDescribed):
                raise
            raise NotDescribed(f". Raised: {error}") from error
        return _FIRST_MESSAGE + body


def _schema_of_result(result: AvroType) -> str:
    raise WrongArgument("A value in Protobuf is a message: result_field must name a field of it for the result.")


TO_PROTOBUF = WriterKind("PROTOBUF", ProtobufDocuments, _schema_of_result)


def _require_same(given: Any, found: Any, place: str) -> None:
    """Raise NotDescribed unless a message says in JSON what a document says. Fields that it has beside are defaults."""
    if isinstance(given, dict) and isinstance(found, dict):
        for name, value in given.items():
            _require_same(value, found.get(name), f"{place}/{name}")
    elif isinstance(given, list) and isinstance(found, list) and len(given) == len(found):
        for one, other in zip(given, found, strict=True):
            _require_same(one, other, place)
    elif not _is_same(given, found):
        raise NotDescribed(f". Raised: {place} would be {found!r}, and is {given!r}")


def _is_same(given: Any, found: Any) -> bool:
    """Whether a scalar is the same. Protobuf's JSON has integers of 64 bits as texts, and floats with few digits."""
    if isinstance(given, bool) or isinstance(found, bool):
        return given is found
    if isinstance(given, str) and isinstance(found, str):
        return given == found or _without_zeros(given) == _without_zeros(found)
    if isinstance(given, int | float) and isinstance(found, str):
        return found.removeprefix("-").isdecimal() and int(found) == given
    if given == found or not (isinstance(given, int | float) and isinstance(found, float)):
        return bool(given == found)
    narrow = np.float32(given)  # of a float, which must have the given digits, or the fewest that tell it from others
    return bool(narrow == np.float32(found)) and given in (float(narrow), float(str(narrow)))


def _without_zeros(text: str) -> str:
    """A time or a duration without the zeros behind its fraction."""
    whole, dot, fraction = text[:-1].rpartition(".")
    digits = fraction.rstrip("0")
    return f"{whole}{digits and dot}{digits}{text[-1]}" if dot else text


def _require_field(message: Descriptor, place: Pointer, kind: AvroType) -> None:
    """Raise WrongArgument unless a message has a field of a type at a place."""
    field: FieldDescriptor | None = None
    found: Descriptor | None = message
    for name in place.names:
        is_within_one = found is not None and (field is None or not field.is_repeated)
        field = found.fields_by_name.get(name) if found is not None and is_within_one else None
        found = None if field is None else field.message_type
    if field is None or not _has_shape(field, ["null", kind]):
        described = _described(["null", kind])
        raise WrongArgument(f"The first message of the schema must have a field {place!s}: {described}.")


def _has_shape(field: FieldDescriptor, kind: AvroType) -> bool:
    """Whether a field has a type, and can be absent if that may be null. A list is empty then."""
    is_nullable = isinstance(kind, list)
    kind = kind[1] if is_nullable else kind
    is_list = isinstance(kind, dict) and kind["type"] == "array"
    kind = kind["items"] if is_list else kind
    if field.is_repeated != is_list or (is_nullable and not is_list and not field.has_presence):
        return False
    if isinstance(kind, str):
        return bool(field.type == FIELD_TYPES[kind])
    types = {one["name"]: one["type"] for one in kind["fields"]}
    fields = {} if field.message_type is None else field.message_type.fields_by_name
    return types.keys() == set(fields) and all([_has_shape(fields[name], one) for name, one in types.items()])


def _described(kind: AvroType) -> str:
    """A type, as files of Protobuf have it."""
    if isinstance(kind, list):
        inner = _described(kind[1])
        return inner if inner.startswith("repeated") else f"optional {inner}"
    if isinstance(kind, str):
        return "int32" if kind == "int" else kind
    if kind["type"] == "array":
        return f"repeated {_described(kind['items'])}"
    fields = [f"{_described(one['type'])} {one['name']}" for one in kind["fields"]]
    return f"message {{ {'; '.join(fields)}; }}"
