"""The types of results, as Avro has types: what derived schemas say of the field of the result."""

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.producer.wire.messages import Options
from penstock.producer.wire.plain_rows import PlainRow

AvroType = Any  # a name, or a dict with `type`

_FLOATS = {"type": "array", "items": "float"}
_INTS = {"type": "array", "items": "int"}
_Fields = list[dict[str, Any]]

_CLASSES: _Fields = [
    {"name": "label", "type": "string"},
    {"name": "score", "type": "float"},
    {"name": "labels", "type": {"type": "array", "items": "string"}, "default": []},
    {"name": "scores", "type": _FLOATS, "default": []},
]
_SPAN: _Fields = [
    {"name": "start", "type": ["null", "int"], "default": None},
    {"name": "end", "type": ["null", "int"], "default": None},
]
_GENERATION: _Fields = [
    {"name": "text", "type": ["null", "string"], "default": None},
    {"name": "finish", "type": "string"},
    {"name": "tokens", "type": _INTS},
]
_SPARSE: _Fields = [{"name": "indices", "type": _INTS}, {"name": "values", "type": _FLOATS}]

_TYPES: dict[str, Callable[[str, Options], AvroType]] = {
    "classify": lambda name, options: _record(name, _CLASSES),
    "embed": lambda name, options: _FLOATS if options.dtype.startswith("float") else _INTS,
    "embed_sparse": lambda name, options: _record(name, _SPARSE),
    "generate": lambda name, options: _record(name, _GENERATION),
    "rerank": lambda name, options: "float",
    "token_classify": lambda name, options: {"type": "array", "items": _record(name, [*_CLASSES, *_SPAN])},
}


def result_type(task: str, options: Options, name: str) -> AvroType:
    """The type of one result of a task. `name`: of the field, by which a record's type is named."""
    return _TYPES[task](f"{name}_result", options)


def chunks_type(one: AvroType, name: str) -> AvroType:
    """The type of the results of a record's chunks, of which one has the type `one`."""
    return {"type": "array", "items": _chunk_type(one, name, [])}


def chunk_record_type(one: AvroType, name: str) -> AvroType:
    """The type of the result of a chunk that is a record of its own."""
    own: _Fields = [
        {"name": "chunk", "type": "int"},
        {"name": "chunks", "type": "int"},
        {"name": "text", "type": "string"},
    ]
    return _chunk_type(one, name, own)


def _chunk_type(one: AvroType, name: str, own: _Fields) -> AvroType:
    is_record = isinstance(one, dict) and one["type"] == "record"
    fields: _Fields = one["fields"] if is_record else [{"name": "embedding", "type": one}]
    places: _Fields = [{"name": "start", "type": "int"}, {"name": "end", "type": "int"}]
    return _record(f"{name}_chunk", [*own, *places, *fields])


def plain_values(row: PlainRow) -> Any:
    """A result in Python's own lists, dicts and numbers."""
    if isinstance(row, np.ndarray):
        return row.tolist()
    if isinstance(row, np.generic):
        return row.item()
    if isinstance(row, dict):
        return {name: plain_values(value) for name, value in row.items()}
    return [plain_values(value) for value in row] if isinstance(row, list) else row


def _record(name: str, fields: _Fields) -> AvroType:
    return {"type": "record", "name": name, "namespace": "penstock", "fields": fields}
