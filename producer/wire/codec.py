"""Wire format v1: values of request, reply and error records. WIRE.md describes it for other languages.

Decoders accept any bytes and return a value or raise `InvalidRequest`, nothing else. Sizes are checked before anything
is allocated from them.
"""

import functools
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgpack
import numpy as np

from penstock.producer.errors import EmptyInput, InvalidRequest, PenstockError
from penstock.producer.wire.messages import (
    NO_OPTIONS,
    ErrorReply,
    Options,
    Reply,
    Request,
    Text,
    Tokens,
    Vector,
    utf8_fault,
)
from penstock.producer.wire.options import check_applicable, check_options, check_task, show
from penstock.producer.wire.reply_rows import LITTLE_ENDIAN, decode_rows, dtype_name, is_int, matrix_bytes, row_items
from penstock.producer.wire.sequence_codec import MAX_ITEMS, decode_fields

VERSION = 1
MAX_RECORD_BYTES = 4 * 1024 * 1024
MAX_SEQUENCES = 4096
MAX_ROW_ERRORS = 64  # sequences that one error reply names
MAX_REPLY_BYTES = 16 * MAX_RECORD_BYTES
MAX_LABELS = 65_536  # of one row, or of a model whose tokens are classified: indices have 16 bits

_UINT32 = np.dtype("<u4")
_SMALL_BYTES = 64 * 1024  # a record this short cannot take much memory
_TIMING_TYPES, _BATCH_TYPES, _STRING = frozenset({float, int}), frozenset({int, str}), frozenset({str})
_MAX_FIELDS = 64
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
        lens = request.tokens.lens
        body["ids"] = request.tokens.ids.astype(_UINT32, copy=False).tobytes()
        body["lens"] = struct.pack(f"<{len(lens)}I", *lens)
    else:
        body["text"] = request.text
    if request.options != NO_OPTIONS:
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
    body = _unpack(value, MAX_RECORD_BYTES, MAX_SEQUENCES, _MAX_REQUEST_CONTAINERS)
    model = _string(body, "model")
    task = check_task(_string(body, "task"))
    if task == "sequence":
        return Request(model, task, sequences=decode_fields(body.get("sequences")))
    tokens = _decode_tokens(body)
    text = _decode_text(body)
    if (tokens is None) == (text is None):
        raise InvalidRequest("Give exactly one of `text` and `ids` with `lens`.")
    _check_pairs(task, text)
    opts = body.get("opts")
    if opts is None:
        return Request(model, task, tokens, text, NO_OPTIONS)
    options = _decode_options(opts)
    check_applicable(options, task, is_text=text is not None)
    return Request(model, task, tokens, text, options)


def encode_reply(reply: Reply, notes: bytes | None = None) -> bytes:
    """The value of a successful reply record; `notes` are its last fields, by `encode_notes`, if several share them."""
    if notes is None:
        notes = encode_notes(reply.cached, reply.timing, reply.batch)
    if (vectors := reply.vectors) is not None:
        head = _vectors_head(reply.model, reply.revision, *vectors.shape, dtype_name(vectors))
        return head + matrix_bytes(vectors) + notes
    items = {**_head_items(reply.model, reply.revision), **row_items(reply)}
    return _map_head(items) + bytes(msgpack.packb(items))[1:] + notes


def encode_vectors(model: str, revision: str, rows: Sequence[Vector], dtype: str, notes: bytes) -> bytes:
    """`encode_reply` for float32 vectors, at least one, that are sent as `dtype`; `notes` are by `encode_notes`.

    Replies of one slice share all but the vectors themselves, which are copied once.
    """
    head = _vectors_head(model, revision, len(rows), len(rows[0]), dtype)
    if dtype == "float32" and LITTLE_ENDIAN:
        return b"".join((head, *rows, notes))  # type: ignore[arg-type]  # typed as buffers from Python 3.12 on
    return b"".join((head, matrix_bytes(np.concatenate(rows).astype(dtype)), notes))


def encode_notes(cached: int, timing: Mapping[str, float], batch: Mapping[str, int | str]) -> bytes:
    """The last, informative fields of a reply."""
    return bytes(msgpack.packb({"cached": cached, "timing": timing, "batch": batch})[1:])


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
    body = _unpack(value, MAX_REPLY_BYTES, MAX_LABELS, _MAX_REPLY_CONTAINERS)
    ok, n, cached = body.get("ok"), body.get("n"), body.get("cached")
    if ok is False:
        return _decode_error(body.get("error"))
    if ok is not True:
        raise InvalidRequest("`ok` must be true or false.")
    if not is_int(n) or not 1 <= n <= MAX_SEQUENCES:
        raise InvalidRequest(f"`n` must be a count of rows, 1 to {MAX_SEQUENCES}.")
    reply = Reply(_string(body, "model"), _string(body, "revision"), **decode_rows(body, n))
    reply.cached = cached if is_int(cached) else 0
    reply.timing = _entries(body.get("timing"), _TIMING_TYPES)
    reply.batch = _entries(body.get("batch"), _BATCH_TYPES)
    return reply


def _unpack(value: bytes | None, max_bytes: int, max_list: int, max_containers: int) -> dict[str, Any]:
    """One msgpack map of this version. Raises InvalidRequest; bounds are checked before memory is allocated."""
    if not value:
        raise InvalidRequest("The record has no value; a msgpack map was expected.")
    if len(value) > max_bytes:
        raise InvalidRequest(f"The record has {len(value):,} bytes; at most {max_bytes:,} are accepted.")
    count_containers = _container_bound(max_containers) if len(value) > _SMALL_BYTES else None
    try:
        body = msgpack.unpackb(
            value,
            use_list=True,
            object_hook=count_containers,
            list_hook=count_containers,
            ext_hook=_refuse_extension,
            max_array_len=max_list,
            max_map_len=_MAX_FIELDS,
        )
    except UnicodeDecodeError as error:
        raise InvalidRequest("A string in the record is not UTF-8.") from error
    except msgpack.StackError as error:
        raise InvalidRequest("The record is nested too deeply.") from error
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        reason = str(error).rstrip(".") or "a byte that msgpack does not know"
        raise InvalidRequest(f"The record is not a msgpack map within the size bounds: {reason}.") from error
    if not isinstance(body, dict):
        raise InvalidRequest(f"The record must be a msgpack map. Given: {show(body)}")
    version = body.get("v")
    if version != VERSION or not is_int(version):
        raise InvalidRequest(f"`v` must be {VERSION}. Given: {show(version)}")
    return body


def _container_bound(max_containers: int) -> Callable[[Any], Any]:
    """A hook that ends unpacking when a record holds more maps and lists than a valid one can."""
    count = 0

    def hook(container: Any) -> Any:
        nonlocal count
        count += 1
        if count > max_containers:
            raise ValueError(f"more than {max_containers} nested maps and lists")
        return container

    return hook


def _refuse_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code} is not part of the format")


def _string(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"`{name}` is missing or not a non-empty string.")
    return value


def _decode_tokens(body: Mapping[str, Any]) -> Tokens | None:
    ids, lens = body.get("ids"), body.get("lens")
    if ids is None and lens is None:
        return None
    if not isinstance(ids, bytes) or not isinstance(lens, bytes) or len(ids) % 4 or len(lens) % 4:
        raise InvalidRequest("`ids` and `lens` must both be bytes of little-endian uint32.")
    if len(lens) > 4 * MAX_SEQUENCES:
        raise InvalidRequest(f"A record holds at most {MAX_SEQUENCES} sequences. Given: {len(lens) // 4}")
    lengths = (int.from_bytes(lens, "little"),) if len(lens) == 4 else struct.unpack(f"<{len(lens) // 4}I", lens)
    if not lengths:
        raise EmptyInput("`lens` is empty: the request holds no sequence.")
    if 0 in lengths:
        raise EmptyInput(f"Sequence {lengths.index(0)} has zero ids.")
    if sum(lengths) * 4 != len(ids):
        raise InvalidRequest(f"`lens` add up to {sum(lengths)}, but `ids` holds {len(ids) // 4} ids.")
    return Tokens(np.frombuffer(ids, _UINT32), lengths)


def _decode_text(body: Mapping[str, Any]) -> tuple[Text, ...] | None:
    text = body.get("text")
    if text is None:
        return None
    if isinstance(text, str):
        text = [text]
    if not isinstance(text, list):
        raise InvalidRequest("`text` must be a string, or a list of strings and pairs of strings.")
    if not text:
        raise EmptyInput("`text` is an empty list: the request holds no sequence.")
    return tuple([_decode_one_text(item, index) for index, item in enumerate(text)])


def _decode_one_text(item: object, index: int) -> Text:
    if isinstance(item, str):
        if not item.strip():
            raise EmptyInput(f"Text {index} is empty.")
        return item
    if isinstance(item, list) and len(item) == 2 and isinstance(item[0], str) and isinstance(item[1], str):
        if not (item[0].strip() and item[1].strip()):
            raise EmptyInput(f"Text pair {index} has an empty member.")
        return (item[0], item[1])
    raise InvalidRequest(f"`text` item {index} must be a string or a pair of strings.")


def _check_pairs(task: str, text: Sequence[Text] | None) -> None:
    """Check that `rerank` has pairs, whose halves only the tokenizer can mark, and tasks of tokens single texts."""
    if task not in ("rerank", "token_classify", "generate"):
        return
    if task == "rerank" and text is None:
        raise InvalidRequest("`rerank` needs `text`: `ids` cannot say where the second text of a pair begins.")
    expected = "a pair of strings" if task == "rerank" else "a single string"
    at_fault = [index for index, item in enumerate(text or ()) if isinstance(item, str) is (task == "rerank")]
    if at_fault:
        errors = {index: InvalidRequest(f"For `{task}`, a text must be {expected}.") for index in at_fault}
        raise InvalidRequest(f"For `{task}`, `text` item {at_fault[0]} must be {expected}.", errors)


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
        _string(detail, "code"),
        _string(detail, "message"),
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
    if types.issuperset(map(type, value.values())) and _STRING.issuperset(map(type, value)):
        return value
    return {key: item for key, item in value.items() if type(item) in types and type(key) is str}
