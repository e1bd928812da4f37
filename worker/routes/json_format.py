"""Records in JSON: reading them, and adding a result without changing the rest by a byte."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from penstock.producer.errors import InvalidRequest
from penstock.producer.wire.plain_rows import PlainRow, plain_json
from penstock.worker.routes.connect_json import extend_schema, is_connect, schema_of
from penstock.worker.routes.pointer import Pointer
from penstock.worker.routes.revision_field import RevisionField

_SPACE = b" \t\r\n"
_LEAST, _GREATEST = -(2**63), 2**64 - 1  # of the integers that orjson reads as such; others become floating-point
_LONG_INTEGER = re.compile(rb"[0-9]{19}")
_ESCAPED_COLON = re.compile(rb"\\u003[aA]")
_AGAIN = "where the record is written again. A result as a new field at the top of JSON leaves it as it is."


def read_json(value: bytes) -> Any:
    """The document in a record's value: of Kafka Connect's schema and payload, the payload.

    Raises InvalidRequest if it is not JSON in UTF-8.
    """
    document = _load(value)
    return document["payload"] if is_connect(document) else document


def read_exactly(value: bytes) -> Any:
    """As `read_json`. Raises InvalidRequest, too, if the document has less than the value: a key, or digits."""
    document = _load(value)
    _require_same(value, document)
    return document["payload"] if is_connect(document) else document


def has_schema(value: bytes) -> bool:
    """Whether a value is of Kafka Connect's schema and payload. Raises as `read_json`."""
    return is_connect(_load(value))


def lacks_object(value: bytes, place: Pointer) -> bool:
    """Whether the object that would get the result is null or absent, as in a delete. Raises as `read_json`."""
    return place.parent.find(read_json(value)) is None


def add_json(
    value: bytes, place: Pointer, result: PlainRow, example: PlainRow = None, revision: RevisionField | None = None
) -> bytes:
    """The record's value with a result at a place; at the top (no names) it is the result alone.

    `value` was read before. `example`: a result of the same type, where the result is null. `revision`: a field beside
    the result.

    A new field of the document is added behind its last: what the record holds stays as it is, in every byte. Where the
    place is deeper, or has a value already, or there is a schema to be extended, the document is written again, with
    floating-point numbers as 64 bits hold them.

    Raises:
        InvalidRequest: there is no object at the place for a field, or the document cannot be written again as it is.
    """
    if not place.names:
        document = _load(value)
        if is_connect(document):
            of_result = schema_of(example if result is None else result)
            return plain_json({"schema": of_result | {"optional": True}, "payload": result})
        return plain_json(result)
    fields = {place.names[-1]: result}
    if revision is not None:
        fields[revision.name] = None if result is None else revision.model
    if (body := _before_new_fields(value, place, fields)) is not None:
        return b"%b,%b" % (body, plain_json(fields)[1:])
    document = _load(value)
    schema = schema_of(example if result is None else result) if is_connect(document) else None
    parent = _parent(document if schema is None else document["payload"], place)
    if parent is document and not fields.keys() & parent.keys():
        body = value.rstrip(_SPACE)[:-1].rstrip(_SPACE)
        return b"%b%b%b" % (body, b"," if parent else b"", plain_json(fields)[1:])
    _require_same(value, document)
    parent.update(fields)
    if schema is not None and document["schema"] is not None:
        extend_schema(document["schema"], place.parent.names, place.names[-1], schema)
        if revision is not None:
            extend_schema(document["schema"], place.parent.names, revision.name, schema_of(revision.model))
    return _written(document)


def _before_new_fields(value: bytes, place: Pointer, names: Iterable[str]) -> bytes | None:
    """All of an object but its last brace, where its bytes tell that fields at the top are new; else None.

    It saves reading the document again, of a record that was read already. A name with an escape is not found so.
    """
    if len(place.names) != 1 or value[:1] != b"{" or b"\\" in value or b'"payload"' in value:
        return None
    if any(orjson.dumps(name) in value for name in names):
        return None
    body = value.rstrip(_SPACE)[:-1].rstrip(_SPACE)
    return body if len(body) > 1 else None


def _require_same(original: bytes, document: Any) -> None:
    """Raise InvalidRequest if a document that was read from `original` would not be the same if it is written again."""
    written = _written(document)
    # A key that is lost is a colon less, unless one was escaped. Python's reader is slower, and decides.
    has_all_keys = original.count(b":") == written.count(b":") and not _ESCAPED_COLON.search(original)
    if not has_all_keys or _LONG_INTEGER.search(original):
        json.loads(original, parse_int=_check_integer, object_pairs_hook=_check_keys)


def _written(document: Any) -> bytes:
    try:
        return plain_json(document)
    except TypeError as error:  # orjson reads deeper documents than it writes
        raise InvalidRequest(f"The record cannot be written again with the result: {error}.") from error


def _check_integer(digits: str) -> None:
    if not _LEAST <= int(digits) <= _GREATEST:
        raise InvalidRequest(f"The record has an integer of more than 64 bits, which would lose digits {_AGAIN}")


def _check_keys(pairs: Sequence[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        [(name, _)] = Counter(names).most_common(1)
        raise InvalidRequest(f"The record has the key {name[:100]!r} twice in one object, and would lose one {_AGAIN}")


def _parent(document: Any, place: Pointer) -> dict[str, Any]:
    """The object that gets the field."""
    path = place.parent
    parent = path.find(document)
    if not isinstance(parent, dict):
        raise InvalidRequest(f"There is no object at {str(path) or 'the top'!r} for the result.")
    return parent


def _load(value: bytes) -> Any:
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The record's value is not JSON: {error.msg} at byte {error.pos}.") from error
