"""Values by one JSON Schema: JSON as in any other record, and the schema with a property for the result."""

from typing import Any

import orjson

from penstock.producer.errors import WrongArgument
from penstock.producer.wire.plain_rows import PlainRow
from penstock.worker.routes.json_format import add_json, read_json
from penstock.worker.routes.pointer import Pointer
from penstock.worker.routes.result_types import AvroType
from penstock.worker.routes.revision_field import RevisionField

_NAMES = {"float": "number", "int": "integer", "string": "string", "null": "null"}  # Avro's -> JSON Schema's


class JsonSchema:
    """A writer's schema, and the one that is derived from it."""

    def __init__(self, text: str, place: Pointer, result: AvroType, revision: RevisionField | None = None) -> None:
        """`result`: the type of the result, which goes to `place`.

        Raises WrongArgument: the schema is none, or does not say what is at the place.
        """
        self._place, self._revision = place, revision
        try:
            schema = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise WrongArgument(f"The schema is not JSON: {error}") from error
        derived = _with_property(schema, place.names, _nullable(result))
        if revision is not None:
            derived = _with_property(derived, (*place.parent.names, revision.name), _nullable("string"))
        try:
            self.output = orjson.dumps(derived).decode()
        except TypeError as error:  # orjson reads deeper documents than it writes
            raise WrongArgument(f"The schema cannot be used: {error}") from error

    def read(self, body: bytes) -> Any:
        """The document. Raises InvalidRequest: it is not JSON."""
        return read_json(body)

    def write(self, body: bytes, result: PlainRow | None) -> bytes:
        """The document with the result. Raises InvalidRequest: there is no object for it."""
        return add_json(body, self._place, result, revision=self._revision)

    def json(self, body: bytes) -> bytes:
        """The document as it is."""
        self.read(body)
        return body


def _with_property(schema: Any, names: tuple[str, ...], described: Any) -> Any:
    """A schema with a property more, in the objects that its own properties lead to."""
    if not names:
        return described
    if not isinstance(schema, dict) or "$ref" in schema or not isinstance(schema.get("properties", {}), dict):
        raise WrongArgument(f"What is to have {names[0]!r} must be an object whose properties the schema has there.")
    properties, name = schema.get("properties", {}), names[0]
    if len(names) == 1 and name in properties:
        raise WrongArgument(f"The schema has a property {name!r} already.")
    if len(names) > 1 and name not in properties:
        raise WrongArgument(f"The schema has no property {name!r}.")
    inner = _with_property(properties.get(name), names[1:], described)
    return schema | {"properties": {**properties, name: inner}}


def _nullable(kind: AvroType) -> dict[str, Any]:
    return {"oneOf": [{"type": "null"}, _described(kind)]}


def _described(kind: AvroType) -> dict[str, Any]:
    """The JSON Schema of a type of results."""
    if isinstance(kind, str):
        return {"type": _NAMES[kind]}
    if isinstance(kind, list):
        return {"oneOf": [_described(one) for one in kind]}
    if kind["type"] == "array":
        return {"type": "array", "items": _described(kind["items"])}
    properties = {field["name"]: _described(field["type"]) for field in kind["fields"]}
    return {"type": "object", "properties": properties}
