"""JSON schemas of the wire format's values and headers, made from the types and constants that the codec uses.

MessagePack's `bin`, which JSON does not have, is a string of the format `binary`.
"""

from importlib.resources import files
from typing import Any, NamedTuple, get_args, get_type_hints

from penstock.producer.errors import ERRORS_BY_CODE
from penstock.producer.wire import headers
from penstock.producer.wire.codec import MAX_LABELS, MAX_ROW_ERRORS, MAX_SEQUENCES
from penstock.producer.wire.envelope import VERSION
from penstock.producer.wire.generation import GENERATION_OPTIONS
from penstock.producer.wire.labels import MAX_LABELS_ASKED
from penstock.producer.wire.messages import DTYPES, FINISHES, NO_OPTIONS, POOLINGS, TASKS, VECTOR_DTYPES, Options
from penstock.producer.wire.reply_rows import ELEMENTS
from penstock.producer.wire.sequence_codec import EMITTED_DTYPES

Schema = dict[str, Any]

_STRING: Schema = {"type": "string"}
_BINARY: Schema = {"type": "string", "format": "binary"}
_INTEGER: Schema = {"type": "integer"}
_NUMBER: Schema = {"type": "number"}
_MAP: Schema = {"type": "object"}
_LABELS: Schema = {"type": "array", "items": _STRING, "minItems": 1, "maxItems": MAX_LABELS_ASKED}
_TYPES: dict[Any, Schema] = {bool: {"type": "boolean"}, int: _INTEGER, str: _STRING, tuple[str, ...]: _LABELS}
_CHOICES = {"pooling": POOLINGS, "dtype": VECTOR_DTYPES}
_BINARY_HEADERS = {headers.CORRELATION_ID, headers.REPLY_PARTITION}


class _WireRow(NamedTuple):
    """One row of a table: the names in its first column, and the other cells."""

    names: tuple[str, ...]
    cells: tuple[str, ...]


def request_schema() -> Schema:
    """The value of a request."""
    described = described_by("Request", "key")
    pair = {"type": "array", "items": _STRING, "minItems": 2, "maxItems": 2}
    texts = _list({"oneOf": [_STRING, pair]}, MAX_SEQUENCES)
    properties = {
        "v": _INTEGER | {"const": VERSION},
        "model": _STRING | {"minLength": 1},
        "task": _STRING | {"enum": list(TASKS)},
        "text": {"oneOf": [_STRING, texts]},
        "ids": _BINARY,
        "lens": _BINARY,
        "sequences": _list(_MAP, MAX_SEQUENCES),
        "opts": options_schema(),
    }
    sequences = {"oneOf": [{"required": ["text"]}, {"required": ["ids", "lens"]}, {"required": ["sequences"]}]}
    return object_schema(properties, described, ["v", "model", "task"]) | sequences


def options_schema() -> Schema:
    """The options of a request."""
    described = {name: row.cells[2] for row in _wire_table("Request", "option") for name in row.names}
    properties = {}
    for name, hint in get_type_hints(Options).items():
        if name == "generation":
            properties[name] = generation_schema()
            continue
        (kind,) = [arg for arg in (get_args(hint) or (hint,)) if arg is not type(None)]
        default = getattr(NO_OPTIONS, name)
        choices = {"enum": list(_CHOICES[name])} if name in _CHOICES else {}
        properties[name] = _TYPES[kind] | choices | ({} if default is None else {"default": default})
    return object_schema(properties, described, [])


def generation_schema() -> Schema:
    """The options of `generate`."""
    described = {name: row.cells[1] for row in _wire_table("Request", "name in `generation`") for name in row.names}
    return object_schema({name: {} for name in GENERATION_OPTIONS}, described, [])


def reply_schemas() -> dict[str, Schema]:
    """The value of a reply to each task."""
    rows = _wire_table("Reply", "key")
    matrix = {
        "shape": {"type": "array", "items": _INTEGER, "minItems": 2, "maxItems": 2},
        "dtype": _STRING | {"enum": list(DTYPES)},
        "data": _BINARY,
    }
    scores = _list(_NUMBER, MAX_LABELS)
    elements = {"dtype": matrix["dtype"], "lens": _BINARY}
    sparse = _required(elements | {"ids": _BINARY, "weights": _BINARY})
    token_vectors = _required(elements | matrix)
    fields: dict[str, Schema] = {
        "embed": matrix | {"dtype": _STRING | {"enum": list(ELEMENTS)}},
        "embed_sparse": {"sparse": sparse},
        "embed_tokens": {"token_vectors": token_vectors},
        "embed_all": {**matrix, "sparse": sparse, "token_vectors": token_vectors},
        "classify": {"labels": _list(_list(_STRING, MAX_LABELS)), "scores": _list(scores)},
        "rerank": {"scores": _list(_NUMBER)},
        "token_classify": {"names": _list(_STRING, MAX_LABELS), "lens": _BINARY, "classes": _BINARY, **matrix},
        "generate": {"ids": _BINARY, "lens": _BINARY, "finish": _list(_STRING | {"enum": list(FINISHES)})},
    }
    column = {
        "lens": _BINARY,
        "shape": matrix["shape"],
        "dtype": _STRING | {"enum": list(EMITTED_DTYPES)},
        "data": _BINARY,
    }
    fields["sequence"] = {"emitted": _MAP | {"additionalProperties": _required(column)}}
    optional: dict[str, Schema] = {"token_classify": {"spans": _BINARY}, "generate": {"text": _list(_STRING)}}
    head = {
        "v": _INTEGER | {"const": VERSION},
        "ok": {"type": "boolean", "const": True},
        "model": _STRING,
        "revision": _STRING,
        "n": _INTEGER | {"minimum": 1, "maximum": MAX_SEQUENCES},
    }
    notes = {"cached": _INTEGER, "timing": _MAP | {"additionalProperties": _NUMBER}, "batch": _MAP}
    schemas = {}
    for task, own in fields.items():
        properties = {**head, **own, **optional.get(task, {}), **notes}
        schemas[task] = object_schema(properties, _described(_of_task(rows, task)), [*head, *own])
    schemas["embed"]["not"] = _any_of("lens", "sparse")  # those are replies to token_classify and embed_all
    schemas["embed_sparse"]["not"] = _any_of("token_vectors")
    schemas["embed_tokens"]["not"] = _any_of("sparse")
    return schemas


def error_schema() -> Schema:
    """The value of an error reply."""
    row = {"type": "array", "items": [_INTEGER, _STRING, _STRING], "minItems": 3, "maxItems": 3}
    code = {"description": "Treat an unknown code as `backend`.", "examples": list(ERRORS_BY_CODE)}
    detail = {
        "code": _STRING | code,
        "message": _STRING | {"description": "A sentence for a person."},
        "retriable": {"type": "boolean", "description": "The same record may succeed later."},
        "rows": _list(row, MAX_ROW_ERRORS) | {"description": "Index, code and message of the sequences at fault."},
    }
    properties = {
        "v": _INTEGER | {"const": VERSION},
        "ok": {"type": "boolean", "const": False},
        "error": object_schema(detail, {}, ["code", "message", "retriable"]),
    }
    return object_schema(properties, {}, list(properties))


def request_headers_schema() -> Schema:
    """The headers of a request."""
    return _headers(_wire_table("Headers", "header of a request"), [headers.REPLY_TOPIC])


def reply_headers_schema() -> Schema:
    """The headers of a reply: those of its request, and its own."""
    rows = _wire_table("Headers", "header of a request")
    of_request = [row for row in rows if row.names[0] in (headers.CORRELATION_ID, headers.TRACEPARENT)]
    return _headers([*of_request, *_wire_table("Headers", "header of a reply")], [])


def dead_letter_headers_schema() -> Schema:
    """The headers of a dead letter, beside those of its original."""
    names = ("header of a dead letter", "header of a shared dead letter")
    rows = [row for name in names for row in _wire_table("Topics", name)]
    return _headers(rows, [headers.ERROR_CODE, headers.SOURCE])


def enriched_headers_schema() -> Schema:
    """The headers of an enriched record, beside those of its original."""
    return _headers(_wire_table("Headers", "header of an enriched record"), [headers.SOURCE])


def replayed_headers_schema() -> Schema:
    """The headers of a copy in a topic of replays, beside those of its original."""
    rows = _wire_table("Headers", "header of a replayed record")
    return _headers(rows, [headers.REPLAY_SOURCE, headers.REPLAY_TIME_MS])


def _headers(rows: list[_WireRow], required: list[str]) -> Schema:
    properties = {
        name: (_BINARY if name in _BINARY_HEADERS else _STRING) | {"description": row.cells[0]}
        for row in rows
        for name in row.names
    }
    return {"type": "object", "properties": properties, "required": required}


def _of_task(rows: list[_WireRow], task: str) -> list[_WireRow]:
    """Rows of the reply's table that concern a task: its own, and those of every task."""
    kept = []
    for row in rows:
        concerned, colon, _ = row.cells[-1].partition(":")
        tasks = concerned.split(" of ")[0].split(", ")
        if not colon or not set(tasks) <= set(TASKS) or task in tasks:
            kept.append(row)
    return kept


def described_by(section: str, first_column: str) -> dict[str, str]:
    """Name -> description, by a table of WIRE.md."""
    return _described(_wire_table(section, first_column))


def _described(rows: list[_WireRow]) -> dict[str, str]:
    return {name: row.cells[-1] for row in rows for name in row.names}


def _list(items: Schema, most: int = MAX_SEQUENCES) -> Schema:
    return {"type": "array", "items": items, "minItems": 1, "maxItems": most}


def _any_of(*names: str) -> Schema:
    return {"anyOf": [{"required": [name]} for name in names]}


def _required(properties: dict[str, Schema]) -> Schema:
    return object_schema(properties, {}, list(properties))


def object_schema(properties: dict[str, Schema], described: dict[str, str], required: list[str]) -> Schema:
    """An object with these properties, of which some are described."""
    shown = {
        name: schema | ({"description": described[name]} if name in described and "const" not in schema else {})
        for name, schema in properties.items()
    }
    return {"type": "object", "properties": shown, **({"required": required} if required else {})}


def _wire_table(section: str, first_column: str) -> list[_WireRow]:
    """The rows of the tables of a section of WIRE.md whose first column has this title."""
    page = (files("penstock.producer.wire") / "WIRE.md").read_text(encoding="utf-8")
    lines = page.split(f"\n## {section}\n")[1].split("\n## ")[0].splitlines()
    rows, is_wanted = [], False
    for line in lines:
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not line.startswith("|"):
            is_wanted = False
        elif not line.startswith(("| `", "|-")):
            is_wanted = cells[0] == first_column
        elif is_wanted and line.startswith("| `"):
            rows.append(_WireRow(_names(cells[0]), tuple(cells[1:])))
    return rows


def _names(cell: str) -> tuple[str, ...]:
    """`a.b`, `.c` -> a.b, a.c."""
    names = [name.strip(" `") for name in cell.split(",")]
    stem = names[0].rpartition(".")[0]
    return tuple(stem + name if name.startswith(".") else name for name in names)
