"""Records with the id of their schema, as Confluent's serializers frame them: a zero byte, the id, and the rest."""

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from penstock.producer.errors import InvalidRequest, WrongArgument
from penstock.producer.wire.plain_rows import PlainRow
from penstock.worker.routes.json_format import add_json
from penstock.worker.routes.pointer import Pointer
from penstock.worker.routes.record_format import RecordFormat
from penstock.worker.routes.revision_field import RevisionField
from penstock.worker.routes.schema_registry import Schema, SchemaRegistry

_HEAD = struct.Struct(">bI")  # the magic byte, and the schema's id
_MOST_UNKNOWN = 1000  # schema ids of which is known that they are of no use


class SchemaCodec(Protocol):
    """The schema of one writer, and how values with it are read and written."""

    output: str  # the derived schema, with the field of the result

    def read(self, body: bytes) -> Any:
        """The document. Raises InvalidRequest: the bytes are not of the schema."""

    def write(self, body: bytes, result: PlainRow | None) -> bytes:
        """The bytes by the derived schema. Raises InvalidRequest: the value has no place for the result."""

    def json(self, body: bytes) -> bytes:
        """The document as JSON."""


class SchemaKind(NamedTuple):
    """One of the kinds of schemas that registries have."""

    name: str  # the registry's
    codec: Callable[[str, Sequence[tuple[str, str]]], SchemaCodec]  # of a schema, and those it refers to by name


class _Known(NamedTuple):
    codec: SchemaCodec
    head: bytes  # of what is written


class FramedFormat(RecordFormat):
    """Schemas of records are fetched once. The schema that is derived from each is registered for the output topic.

    Subjects have the names of their topics: `<topic>-value`.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        kind: SchemaKind,
        topics: tuple[str, str],
        place: Pointer,
        revision: RevisionField | None = None,
    ) -> None:
        """`topics`: the input topic, and the output topic. `place`: of the result."""
        self._registry, self._kind, self._place, self._revision = registry, kind, place, revision
        self._input, self._output = [f"{topic}-value" for topic in topics]
        self._known: dict[int, _Known] = {}
        self._unknown: dict[int, InvalidRequest] = {}
        self._is_checked = False

    async def check(self) -> None:
        """Derive and register the schemas of the output from those that the input topic has by now. Called at start.

        In the order of the input's versions: of two that are compatible the later one may not be followed by the
        earlier, as one that has lost a field.

        Raises WrongArgument if the latest cannot be derived, or is not compatible with the output topic's.
        """
        versions = await self._registry.versions(self._input)
        for schema_id, schema in versions[:-1]:
            await self._learn(schema_id, schema)
        for schema_id, schema in versions[-1:]:
            self._known[schema_id] = await self._learned(schema_id, schema)
        self._is_checked = True

    def is_ready(self, value: bytes) -> bool:
        return not _is_framed(value) or _HEAD.unpack_from(value)[1] in self._known

    async def prepare(self, values: Sequence[bytes]) -> None:
        if not self._is_checked:  # the registry was away at start
            await self.check()
        for schema_id in sorted({_HEAD.unpack_from(value)[1] for value in values if not self.is_ready(value)}):
            await self._learn(schema_id, await self._registry.schema(schema_id))

    def read(self, value: bytes) -> Any:
        return self._find(value).codec.read(value[_HEAD.size :])

    def lacks_object(self, value: bytes) -> bool:
        return self._place.parent.find(self.read(value)) is None

    def write(self, original: bytes, result: PlainRow | None) -> bytes:
        known = self._find(original)
        return known.head + known.codec.write(original[_HEAD.size :], result)

    async def _learn(self, schema_id: int, schema: Schema | None) -> None:
        """Know a schema, or why it is of no use."""
        try:
            if schema is None:
                raise InvalidRequest(f"The schema registry has no schema with the id {schema_id}.")
            self._known[schema_id] = await self._learned(schema_id, schema)
        except InvalidRequest as error:
            if len(self._unknown) >= _MOST_UNKNOWN:
                self._unknown.clear()
            self._unknown[schema_id] = error

    async def _learned(self, schema_id: int, schema: Schema) -> _Known:
        if schema.schema_type != self._kind.name:
            raise WrongArgument(
                f"The schema {schema_id} of {self._input} is {schema.schema_type}, not {self._kind.name}."
            )
        codec = self._kind.codec(schema.schema_str, await self._registry.referenced(schema))
        return _Known(codec, await self._head(schema_id, schema, codec))

    async def _head(self, schema_id: int, schema: Schema, codec: SchemaCodec) -> bytes:
        derived = type(schema)(codec.output, schema.schema_type, schema.references)
        try:
            return _HEAD.pack(0, await self._registry.register(self._output, derived))
        except WrongArgument as error:
            latest = await self._registry.latest(self._output)
            raise WrongArgument(
                f"The schema {schema_id} of {self._input} with the result makes a schema that the registry refuses for "
                f"{self._output}{'' if latest is None else f', whose latest is {latest[0]}'}: {error.message}"
            ) from error

    def _find(self, value: bytes) -> _Known:
        if not _is_framed(value):
            raise InvalidRequest("The record's value does not begin with a zero byte and the id of a schema.")
        schema_id = _HEAD.unpack_from(value)[1]
        known = self._known.get(schema_id)
        if known is None:
            raise self._unknown.get(schema_id) or InvalidRequest(f"The schema {schema_id} was not fetched.")
        return known


class FramedToJson(FramedFormat):
    """Framed values in, JSON without a schema out."""

    def write(self, original: bytes, result: PlainRow | None) -> bytes:
        return add_json(self.passed(original), self._place, result, revision=self._revision)

    def passed(self, original: bytes) -> bytes:
        return self._find(original).codec.json(original[_HEAD.size :])

    async def _head(self, schema_id: int, schema: Schema, codec: SchemaCodec) -> bytes:
        return b""


def _is_framed(value: bytes) -> bool:
    return len(value) >= _HEAD.size and value[0] == 0
