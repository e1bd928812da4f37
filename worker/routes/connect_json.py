"""JSON of Kafka Connect's JsonConverter: a schema and a payload. A result needs a field of the schema too.

Source: JsonConverter and ConnectSchema of Kafka 4.4.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock.producer.errors import InvalidRequest
from penstock.producer.wire.plain_rows import PlainRow

# In place of a long value that an update has not changed: Debezium's default for `unavailable.value.placeholder`.
UNAVAILABLE = "__debezium_unavailable_value"
_ENVELOPE = {"schema", "payload"}
_CLASS: PlainRow = {"label": "", "score": np.float32(0)}
_NUMBERS, _IDS = np.zeros(1, np.float32), np.zeros(1, np.int64)
# A result of each task, whose schema is that of a null.
EXAMPLES: Mapping[str, PlainRow] = {
    "classify": _CLASS,
    "embed": _NUMBERS,
    "embed_sparse": {"indices": _IDS, "values": _NUMBERS},
    "generate": {"text": "", "finish": "", "tokens": [0]},
    "rerank": np.float32(0),
    "token_classify": [{**_CLASS, "start": 0, "end": 0}],
}


def is_connect(document: Any) -> bool:
    """Whether a document is a schema and a payload. JsonConverter allows nothing beside them.

    The schema is null where the source has none, as in documents of MongoDB.
    """
    return isinstance(document, dict) and document.keys() == _ENVELOPE and isinstance(document["schema"], dict | None)


def schema_of(result: PlainRow) -> dict[str, Any]:
    """The schema of a result. Vectors are arrays of float, which sinks write as they are."""
    match result:
        case np.ndarray():
            return {"type": "array", "items": {"type": "float" if result.dtype.kind == "f" else "int64"}}
        case Mapping():
            return {"type": "struct", "fields": [schema_of(value) | {"field": name} for name, value in result.items()]}
        case str():
            return {"type": "string"}
        case int():
            return {"type": "int64"}
        case Sequence():
            return {"type": "array", "items": schema_of(result[0]) if result else {"type": "string"}}
    return {"type": "float"}


def extend_schema(schema: Any, path: Sequence[str], name: str, field: Mapping[str, Any]) -> None:
    """Give the struct at a path of the payload a field more, in place of one of that name.

    Raises:
        InvalidRequest: the schema has no struct there.
    """
    for step in path:
        schema = _fields(schema).get(step)
    fields = _fields(schema)
    fields[name] = {**field, "optional": True, "field": name}
    schema["fields"] = list(fields.values())


def _fields(schema: Any) -> dict[str, Any]:
    """The fields of a struct by name."""
    if isinstance(schema, dict) and isinstance(schema.get("fields"), list):
        found = {str(one.get("field")): one for one in schema["fields"] if isinstance(one, dict)}
        if len(found) == len(schema["fields"]):
            return found
    raise InvalidRequest("The record's schema has no struct at the place of the result.")
