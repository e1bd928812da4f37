"""JSON schemas of the wire format's JSON objects: what differs from those of MessagePack."""

from penstock.ops.cli.development.asyncapi_schemas import (
    Schema,
    described_by,
    error_schema,
    object_schema,
    reply_schemas,
    request_schema,
)
from penstock.producer.wire.codec import MAX_ROW_ERRORS, MAX_SEQUENCES
from penstock.producer.wire.messages import TASKS

_INTEGER: Schema = {"type": "integer"}
_STRING: Schema = {"type": "string"}
_SECTION = "JSON"


def json_request_schema() -> Schema:
    """The value of a JSON request."""
    of_msgpack = request_schema()["properties"]
    ids = {"type": "array", "items": _INTEGER | {"minimum": 0}, "minItems": 1}
    lists = {"type": "array", "items": ids, "minItems": 1, "maxItems": MAX_SEQUENCES}
    properties = {name: of_msgpack[name] for name in ("v", "model", "task", "text", "sequences", "opts")}
    properties["tokens"] = {"oneOf": [ids, lists]}
    described = described_by(_SECTION, "key of a JSON request")
    return object_schema(properties, described, []) | {
        "oneOf": [{"required": [name]} for name in ("text", "tokens", "sequences")]
    }


def json_reply_schema() -> Schema:
    """The value of a reply to a JSON request."""
    of_msgpack = reply_schemas()["embed"]["properties"]
    head = {name: of_msgpack[name] for name in ("v", "ok", "model", "revision", "n")}
    own = {
        "task": _STRING | {"enum": list(TASKS)},
        "rows": {"type": "array", "minItems": 1, "maxItems": MAX_SEQUENCES},
    }
    notes = {name: of_msgpack[name] for name in ("cached", "timing", "batch")}
    described = described_by(_SECTION, "key of a JSON reply")
    return object_schema({**head, **own, **notes}, described, [*head, *own])


def json_error_schema() -> Schema:
    """The value of an error reply to a JSON request."""
    schema = error_schema()
    row = object_schema({"index": _INTEGER, "code": _STRING, "message": _STRING}, {}, ["index", "code", "message"])
    rows = schema["properties"]["error"]["properties"]["rows"]
    rows |= {"items": row, "maxItems": MAX_ROW_ERRORS, "description": "The sequences at fault."}
    return schema
