"""Values by one Avro schema: reading them, and adding a result without changing the rest by a byte."""

import base64
import copy
import json
from collections.abc import Sequence
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import numpy as np
import orjson
from fastavro.schema import SchemaParseException, UnknownType

from penstock.producer.errors import InvalidRequest, WrongArgument
from penstock.producer.wire.plain_rows import PlainRow
from penstock.worker.routes.avro_fields import with_field, without_logical_types
from penstock.worker.routes.pointer import Pointer
from penstock.worker.routes.result_types import AvroType, plain_values
from penstock.worker.routes.revision_field import RevisionField

_NULL, _PRESENT = b"\x00", b"\x02"  # the branches of the union ["null", result], as Avro writes them


class AvroSchema:
    """A writer's schema, and the one that is derived from it.

    The field of the result is the last of its record, but for its revision: its bytes follow those of the record's
    other fields, which stay as they are. In documents a time is a number, as Avro has it, and a decimal a decimal.
    """

    def __init__(
        self,
        text: str,
        referenced: Sequence[str],
        place: Pointer,
        result: AvroType,
        revision: RevisionField | None = None,
    ) -> None:
        """`referenced`: the schemas that it refers to. `result`: the type of the result, which goes to `place`.

        Raises WrongArgument: the schema is none, or has no place for the result.
        """
        self._place, self._parent = place, place.parent
        try:
            schema = json.loads(text)
            derived, start = with_field(schema, place.names, result) if place.names else (result, schema)
            if revision is not None:
                derived, _ = with_field(derived, (*place.parent.names, revision.name), "string")
            names: dict[str, Any] = {}
            for one in referenced:
                fastavro.parse_schema(without_logical_types(json.loads(one)), names)
            self._schema, self._start, _ = [
                fastavro.parse_schema(without_logical_types(one), copy.deepcopy(names))
                for one in (schema, start, derived)
            ]
        except (SchemaParseException, UnknownType, ValueError, TypeError, KeyError, AttributeError) as error:
            raise WrongArgument(f"The schema cannot be used: {error!r}") from error
        self._result = fastavro.parse_schema(result)
        self._absent, self._revised = _NULL, b""
        if revision is not None:
            self._absent, self._revised = _NULL * 2, _PRESENT + _avro("string", revision.model)
        self.output = json.dumps(derived)

    def read(self, body: bytes) -> Any:
        """The document. Raises InvalidRequest: the bytes are not of the schema."""
        document, num_bytes = _read(self._schema, body)
        if num_bytes < len(body):
            raise InvalidRequest(f"The record has {len(body) - num_bytes} bytes behind what its schema describes.")
        return document

    def write(self, body: bytes, result: PlainRow | None) -> bytes:
        """The bytes with the result, by the derived schema. Raises InvalidRequest: there is no record for it."""
        if not self._place.names:
            if result is None:
                raise InvalidRequest("The result is the whole value, which cannot be null.")
            return self._written(result)
        end = len(body)
        if self._parent.names:
            document, end = _read(self._start, body)
            if not isinstance(self._parent.find(document), dict):
                raise InvalidRequest(f"There is no record at {str(self._parent)!r} for the result.")
        added = self._absent if result is None else _PRESENT + self._written(result) + self._revised
        return body[:end] + added + body[end:]

    def json(self, body: bytes) -> bytes:
        """The document as JSON: bytes in base64, decimals as strings."""
        return orjson.dumps(self.read(body), default=_json_value)

    def _written(self, result: PlainRow | None) -> bytes:
        if isinstance(result, np.ndarray) and result.dtype.kind == "f" and result.size:
            # An array of floats is their count, their bytes and a zero; fastavro takes 140 µs for 384 of them.
            return _avro("long", result.size) + result.astype("<f4").tobytes() + b"\0"
        return _avro(self._result, plain_values(result))


def _avro(schema: AvroType, value: Any) -> bytes:
    file = BytesIO()
    fastavro.schemaless_writer(file, schema, value)
    return file.getvalue()


def _read(schema: AvroType, body: bytes) -> tuple[Any, int]:
    """The value at the beginning of bytes, and how many it has."""
    file = BytesIO(body)
    try:
        return fastavro.schemaless_reader(file, schema, None), file.tell()
    except (EOFError, ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError) as error:
        raise InvalidRequest(f"The record is not what its Avro schema describes: {error!r}") from error


def _json_value(value: object) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return f"{value:f}"
    raise TypeError(f"{type(value)} is no value of Avro. This is a bug.")
