"""Requests and replies as JSON objects, for clients without MessagePack. WIRE.md describes them.

`decode_json_request` accepts any bytes and returns a value or raises `InvalidRequest`, nothing else.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from penstock.producer.errors import EmptyInput, InvalidRequest, PenstockError
from penstock.producer.wire.codec import MAX_RECORD_BYTES, MAX_ROW_ERRORS, MAX_SEQUENCES, read_request
from penstock.producer.wire.envelope import VERSION, check_size, check_version
from penstock.producer.wire.messages import Reply, Request, Tokens, join_tokens
from penstock.producer.wire.plain_rows import plain_json, plain_row
from penstock.producer.wire.sequence_codec import MAX_ITEMS
from penstock.producer.wire.sequences import encode_tokens

_OBJECT, _LEAST_MAP = ord("{"), 0x80  # the first byte of a JSON object; of a msgpack map it is this one or a higher one
_SPACES = b" \t\r\n"
_SMALL_BYTES = 64 * 1024  # an object this short cannot take much memory
_MAX_MEMBERS = MAX_ITEMS  # lists, objects and names in them
_MAX_QUOTES = 4 * MAX_ITEMS  # two a string


class Defaults(NamedTuple):
    """The keys that a JSON request may leave out, by the model that its worker serves."""

    model: str
    task: str


def is_json(value: bytes | None) -> bool:
    """Whether a request's value is a JSON object, and no msgpack map, by its first byte that is no space."""
    if not value or value[0] >= _LEAST_MAP:
        return False
    return value[0] == _OBJECT or (value[0] in _SPACES and value.lstrip(_SPACES)[:1] == b"{")


def decode_json_request(value: bytes, defaults: Defaults) -> Request:
    """Parse and check a value of `is_json`. Raises InvalidRequest or a subclass; the message names the field."""
    body = _present(_parse(value))
    check_version(body.setdefault("v", VERSION))
    body.setdefault("model", defaults.model)
    body.setdefault("task", defaults.task)
    if "ids" in body or "lens" in body:
        raise InvalidRequest("`ids` and `lens` are bytes, which JSON does not have: send `tokens`, lists of token ids.")
    if body["task"] != "sequence" and ("text" in body) == ("tokens" in body):
        raise InvalidRequest("Give exactly one of `text` and `tokens`.")
    if isinstance(body.get("opts"), dict):
        body["opts"] = _present(body["opts"])
    _check_count(body.get("text"))
    if "tokens" in body:
        body["ids"], body["lens"] = encode_tokens(_tokens(body["tokens"]))
    return read_request(body)


def encode_json_reply(task: str, reply: Reply) -> bytes:
    """The value of a successful reply record, or of a partial one."""
    rows = [plain_row(task, row) for row in reply.rows(task)]
    head = {"v": VERSION, "ok": True, "model": reply.model, "revision": reply.revision, "task": task}
    notes = {"cached": reply.cached, "timing": dict(reply.timing), "batch": dict(reply.batch)}
    return plain_json({**head, "n": len(rows), "rows": rows, **notes})


def encode_json_error(error: PenstockError) -> bytes:
    """The value of an error reply record."""
    detail: dict[str, Any] = {"code": error.code, "message": error.message, "retriable": error.retriable}
    if error.rows:
        first = list(error.rows.items())[:MAX_ROW_ERRORS]
        detail["rows"] = [{"index": index, "code": row.code, "message": row.message} for index, row in first]
    return plain_json({"v": VERSION, "ok": False, "error": detail})


def _parse(value: bytes) -> dict[str, Any]:
    check_size(value, MAX_RECORD_BYTES)
    if len(value) > _SMALL_BYTES:
        _check_members(value)
    try:
        body: dict[str, Any] = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The record begins as a JSON object, but is not one: {error}.") from None
    return body


def _check_members(value: bytes) -> None:
    """Raise InvalidRequest for an object that takes much more memory than its bytes, before it is parsed."""
    if _num_members(value) <= _MAX_MEMBERS and value.count(b'"') <= _MAX_QUOTES:
        return
    unescaped = value.replace(rb"\\", b"").replace(rb"\"", b"")
    too_many = unescaped.count(b'"') > _MAX_QUOTES
    if too_many or _num_members(b"".join(unescaped.split(b'"')[::2])) > _MAX_MEMBERS:
        raise InvalidRequest(
            f"The record holds more than {_MAX_MEMBERS:,} lists, objects and names, or {_MAX_QUOTES // 2:,} strings."
        )


def _num_members(value: bytes) -> int:
    return value.count(b"[") + value.count(b"{") + value.count(b":")


def _present(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that are null are left out: some writers cannot omit a field."""
    return {name: value for name, value in fields.items() if value is not None}


def _tokens(given: object) -> Tokens:
    """`tokens` of one or several sequences."""
    if not isinstance(given, list):
        raise InvalidRequest("`tokens` must be a list of token ids, or a list of such lists.")
    if not given:
        raise EmptyInput("`tokens` is an empty list: the request holds no sequence.")
    sequences = given if isinstance(given[0], list) else [given]
    _check_count(sequences)
    for index, sequence in enumerate(sequences):
        if not isinstance(sequence, list) or not {int}.issuperset(map(type, sequence)):
            raise InvalidRequest(f"`tokens` item {index} must be a list of token ids, each an integer.")
    return join_tokens(sequences)


def _check_count(sequences: object) -> None:
    if isinstance(sequences, list) and len(sequences) > MAX_SEQUENCES:
        raise InvalidRequest(f"A record holds at most {MAX_SEQUENCES} sequences. Given: {len(sequences)}")
