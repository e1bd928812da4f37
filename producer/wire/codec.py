"""Wire format v1: values of request, reply and error records. WIRE.md describes it for other languages.

Decoders accept any bytes and return a value or raise `InvalidRequest`, nothing else. Sizes are checked before anything
is allocated from them.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import msgpack
import numpy as np

from penstock.producer.errors import InvalidRequest, PenstockError
from penstock.producer.wire.envelope import VERSION, string, unpack
from penstock.producer.wire.messages import (
    BIT_DTYPES,
    NO_OPTIONS,
    REQUEST_TOKENS,
    ErrorReply,
    Options,
    Reply,
    Request,
    Vector,
    utf8_fault,
)
from penstock.producer.wire.options import check_applicable, check_options, check_task
from penstock.producer.wire.reply_rows import (
    LITTLE_ENDIAN,
    decode_rows,
    is_int,
    matrix_bytes,
    row_items,
    sign_bits,
)
from penstock.producer.wire.sequence_codec import MAX_ITEMS, decode_fields
from penstock.producer.wire.sequences import check_pairs, decode_text, decode_tokens, encode_tokens

MAX_RECORD_BYTES = 4 * 1024 * 1024
MAX_SEQUENCES = 4096
MAX_ROW_ERRORS = 64  # sequences that one error reply names
MAX_REPLY_BYTES = 16 * MAX_RECORD_BYTES
MAX_LABELS = 65_536  # of one row, or of a model whose tokens are classified: indices have 16 bits

_TIMING_TYPES, _BATCH_TYPES = frozenset({float, int}), frozenset({int, str})
_NOTES, _NOTES_HEAD = frozenset({"v", "cached", "timing", "batch"}), b"\x84\xa1v" + bytes([VERSION])
_MAX_NOTES_BYTES, _MAX_HEAD_BYTES = 4096, 1024
_VECTORS_FOLLOW, _LENGTH_BYTES = b"\xa4data\xc5", 2  # the key, and msgpack's type of 256 bytes to 64 KiB
_MAX_REQUEST_CONTAINERS = MAX_ITEMS  # lists of the fields of `sequence`; one list a text pair; fields of later versions
_MAX_REPLY_CONTAINERS = 2 * MAX_SEQUENCES + 64  # two lists a row of classes


def encode_request(request: Request) -> bytes:
    """The record's value. Equal requests give equal bytes, so their hash is a content hash.

    Raises:
        InvalidRequest: a text holds half a surrogate pair, which UTF-8 cannot encode; `rows` names the texts.
    """
    body: dict[str, Any] = {"v": VERSION, "model": request.model, "task": request.task}
    if request.sequences is not None:
        body["sequences"] = request.sequences
    elif request.tokens is not None:
        body["ids"], body["lens"] = encode_tokens(request.tokens)
    else:
        body["text"] = request.text
    if request.options is not NO_OPTIONS and request.options != NO_OPTIONS:
        given = zip(Options._fields, request.options, NO_OPTIONS, strict=True)
        body["opts"] = {name: value for name, value, default in given if value != default}
        if request.options.generation:
            body["opts"]["generation"] = dict(request.options.generation)
    try:
        return bytes(msgpack.packb(body))
    except UnicodeEncodeError as error:
        faults = {index: utf8_fault("".join(text)) for index, text in enumerate(request.text or ())}
        rows = {i: InvalidRequest(f"The text cannot be UTF-8: {fault}.") for i, fault in faults.items() if fault}
        raise InvalidRequest(f"A string cannot be UTF-8: {error.reason} at character {error.start}.", rows) from error


def decode_request(value: bytes | None) -> Request:
    """Parse and check a request value. Raises InvalidRequest or a subclass; the message names the field."""
    return read_request(unpack(value, MAX_RECORD_BYTES, MAX_SEQUENCES, _MAX_REQUEST_CONTAINERS))


def read_request(body: Mapping[str, Any]) -> Request:
    """The request in a map of this version. Raises as `decode_request`."""
    model = string(body, "model")
    task = check_task(string(body, "task"))
    if task == "sequence":
        return Request(model, task, sequences=decode_fields(body.get("sequences")))
    tokens = decode_tokens(body, MAX_SEQUENCES)
    text = decode_text(body)
    if (tokens is None) == (text is None):
        raise InvalidRequest("Give exactly one of `text` and `ids` with `lens`.")
    opts = body.get("opts")
    options = NO_OPTIONS if opts is None else _decode_options(opts)
    check_pairs(task, text, has_labels=options.labels is not None)
    if options is not NO_OPTIONS:
        check_applicable(options, task, is_text=text is not None)
    return Request(model, task, tokens, text, options)


def encode_reply(reply: Reply, notes: bytes | None = None) -> bytes:
    """The value of a successful reply record; `notes` are its last fields, by `encode_notes`, if several share them."""
    if notes is None:
        notes = encode_notes(reply.cached, reply.timing, reply.batch)
    items = {**_head_items(reply.model, reply.revision), **row_items(reply)}
    return _map_head(items) + bytes(msgpack.packb(items))[1:] + notes


def encode_vectors(model: str, revision: str, rows: Sequence[Vector], dtype: str, notes: bytes) -> bytes:
    """`encode_reply` for float32 vectors, at least one, that are sent as `dtype`; `notes` are by `encode_notes`.

    Replies of one slice share all but the vectors themselves, which are copied once.
    """
    if dtype in BIT_DTYPES:
        signs = sign_bits(np.stack(rows), dtype)
        return b"".join((_vectors_head(model, revision, *signs.shape, signs.dtype.name), signs.tobytes(), notes))
    head = _vectors_head(model, revision, len(rows), len(rows[0]), dtype)
    if dtype == "float32" and LITTLE_ENDIAN:
        return b"".join((head, *rows, notes))  # type: ignore[arg-type]  # typed as buffers from Python 3.12 on
    return b"".join((head, matrix_bytes(np.concatenate(rows).astype(dtype)), notes))


def encode_notes(cached: int, timing: Mapping[str, float], batch: Mapping[str, int | str]) -> bytes:
    """The last, informative fields of a reply."""
    return bytes(msgpack.packb({"cached": cached, "timing": timing, "batch": batch})[1:])


def encode_shared_notes(cached: int, timing: Mapping[str, float], batch: Mapping[str, int | str]) -> bytes:
    """`encode_notes` of several replies, for `own_notes`."""
    return encode_notes(cached, timing, {**batch, REQUEST_TOKENS: 0})


def own_notes(shared: bytes, request_tokens: int) -> bytes:
    """The notes of one reply, with its request's tokens in place of the zero at the end of the shared ones."""
    return shared[:-1] + _packed_count(request_tokens)


@functools.lru_cache(maxsize=4096)
def _packed_count(count: int) -> bytes:
    return bytes(msgpack.packb(count))


@functools.lru_cache(maxsize=1024)
def _vectors_head(model: str, revision: str, n: int, dim: int, dtype: str) -> bytes:
    """A reply of vectors up to the vectors themselves."""
    num_bytes = n * dim * np.dtype(dtype).itemsize
    items = {
        **_head_items(model, revision),
        "n": n,
        "shape": (n, dim),
        "dtype": dtype,
        "data": bytes(num_bytes),
    }
    return _map_head(items) + bytes(msgpack.packb(items))[1 : -num_bytes or None]


def _head_items(model: str, revision: str) -> dict[str, Any]:
    return {"v": VERSION, "ok": True, "model": model, "revision": revision}


def _map_head(items: Mapping[str, Any]) -> bytes:
    """The first byte of a reply: a msgpack map of these items and the three of `encode_notes`, at most 15."""
    return bytes([0x80 | (len(items) + 3)])


def encode_error(error: PenstockError) -> bytes:
    """The value of an error reply record."""
    detail: dict[str, Any] = {"code": error.code, "message": error.message, "retriable": error.retriable}
    if error.rows:
        first = list(error.rows.items())[:MAX_ROW_ERRORS]
        detail["rows"] = [(index, row.code, row.message) for index, row in first]
    return bytes(msgpack.packb({"v": VERSION, "ok": False, "error": detail}))


def decode_reply(value: bytes | None) -> Reply | ErrorReply:
    """Parse and check a reply value. Raises InvalidRequest for anything but a reply of this version."""
    return _read_vectors(value or b"") or _decode_reply(value)


def _read_vectors(value: bytes) -> Reply | None:
    """A reply of vectors of less than 64 KiB, as `encode_reply` writes it, in half the time; None for any other."""
    start = value.find(_VECTORS_FOLLOW, 0, _MAX_HEAD_BYTES) + len(_VECTORS_FOLLOW) + _LENGTH_BYTES
    known = _read_head(value[:start])
    if known is None:
        return None
    model, revision, shape, dtype = known
    end = start + int.from_bytes(value[start - _LENGTH_BYTES : start], "big")
    try:
        notes = unpack(_NOTES_HEAD + value[end:], _MAX_NOTES_BYTES, MAX_LABELS, _MAX_REPLY_CONTAINERS)
    except InvalidRequest:
        return None
    if notes.keys() != _NOTES:
        return None
    return _noted(Reply(model, revision, np.ndarray(shape, dtype, value[start:end])), notes)


@functools.lru_cache(maxsize=256)
def _read_head(head: bytes) -> tuple[str, str, tuple[int, ...], Any] | None:
    """Model, revision, and shape and type of the vectors that follow; None if it is not a head as `encode_reply`'s."""
    num_bytes = int.from_bytes(head[-_LENGTH_BYTES:], "big")
    try:
        reply = _decode_reply(head + bytes(num_bytes) + encode_notes(0, {}, {}))
    except InvalidRequest:
        return None
    if not isinstance(reply, Reply) or (vectors := reply.vectors) is None:
        return None
    is_own = head == _vectors_head(reply.model, reply.revision, *vectors.shape, vectors.dtype.name)
    return (reply.model, reply.revision, vectors.shape, vectors.dtype) if is_own else None


def _decode_reply(value: bytes | None) -> Reply | ErrorReply:
    body = unpack(value, MAX_REPLY_BYTES, MAX_LABELS, _MAX_REPLY_CONTAINERS)
    ok, n = body.get("ok"), body.get("n")
    if ok is False:
        return _decode_error(body.get("error"))
    if ok is not True:
        raise InvalidRequest("`ok` must be true or false.")
    if not is_int(n) or not 1 <= n <= MAX_SEQUENCES:
        raise InvalidRequest(f"`n` must be a count of rows, 1 to {MAX_SEQUENCES}.")
    return _noted(Reply(string(body, "model"), string(body, "revision"), **decode_rows(body, n)), body)


def _noted(reply: Reply, notes: Mapping[str, Any]) -> Reply:
    """The reply with its informative fields, as far as they are well-formed."""
    cached = notes.get("cached")
    reply.cached = cached if is_int(cached) else 0
    reply.timing = _entries(notes.get("timing"), _TIMING_TYPES)
    reply.batch = _entries(notes.get("batch"), _BATCH_TYPES)
    return reply


def _decode_options(opts: object) -> Options:
    if not isinstance(opts, dict):
        raise InvalidRequest("`opts` must be a map.")
    return check_options(opts, "opts.")


def _decode_error(detail: object) -> ErrorReply:
    if not isinstance(detail, dict):
        raise InvalidRequest("`error` must be a map.")
    rows = detail.get("rows", [])
    if not isinstance(rows, list):
        raise InvalidRequest("`error.rows` must be a list.")
    return ErrorReply(
        string(detail, "code"),
        string(detail, "message"),
        detail.get("retriable") is True,
        tuple([_decode_row_error(row) for row in rows]),
    )


def _decode_row_error(row: object) -> tuple[int, str, str]:
    match row:
        case [int(index), str(code), str(message)] if is_int(index) and index >= 0:
            return (index, code, message)
    raise InvalidRequest("An item of `error.rows` must be [sequence index, code, message].")


def _entries(value: object, types: frozenset[type]) -> dict[str, Any]:
    """Named values of an informative field. Malformed entries are dropped, since the reply itself is valid."""
    if not isinstance(value, dict):
        return {}
    for key, item in value.items():
        if type(item) not in types or type(key) is not str:
            return {key: item for key, item in value.items() if type(item) in types and type(key) is str}
    return value
