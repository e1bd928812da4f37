"""Records in JSON: reading them, and adding a result without changing the rest by a byte."""

from typing import Any

import orjson

from penstock.producer.errors import InvalidRequest
from penstock.producer.wire.plain_rows import PlainRow, plain_json
from penstock.worker.routes.pointer import Pointer

_SPACE = b" \t\r\n"


def read_json(value: bytes) -> Any:
    """The document in a record's value. Raises InvalidRequest if it is not JSON in UTF-8."""
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The record's value is not JSON: {error.msg} at byte {error.pos}.") from error


def add_json(value: bytes, place: Pointer, result: PlainRow) -> bytes:
    """The record's value with a result at a place; at the top (no names) it is the result alone.

    A new field of the document is added behind its last: what the record holds stays as it is, in every byte. Where the
    place is deeper, or has a value already, the document is written again, with numbers as 64 bits hold them.

    Raises:
        InvalidRequest: there is no object at the place for a field.
    """
    if not place.names:
        return plain_json(result)
    document = read_json(value)
    *path, name = place.names
    parent = Pointer(tuple(path)).find(document)
    if not isinstance(parent, dict):
        raise InvalidRequest(f"There is no object at {str(Pointer(tuple(path))) or 'the top'!r} for the result.")
    if not path and name not in parent:
        body = value.rstrip(_SPACE)[:-1].rstrip(_SPACE)
        return b"%b%b%b:%b}" % (body, b"," if parent else b"", orjson.dumps(name), plain_json(result))
    parent[name] = result
    return plain_json(document)
