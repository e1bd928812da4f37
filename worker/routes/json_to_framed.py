"""JSON or plain text in, values with a schema out: by one that the output topic has, or the result's own."""

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from penstock.producer.errors import InvalidRequest, WrongArgument
from penstock.producer.wire.plain_rows import PlainRow
from penstock.worker.routes.json_format import read_exactly
from penstock.worker.routes.pointer import Pointer
from penstock.worker.routes.record_format import JsonFormat, RecordFormat
from penstock.worker.routes.result_types import AvroType, plain_values
from penstock.worker.routes.revision_field import RevisionField
from penstock.worker.routes.schema_registry import SchemaRegistry

_HEAD = struct.Struct(">bI")  # see framed_format.py
_MAX_REASON_CHARS = 1000  # an error quotes the value and the type


class DocumentWriter(Protocol):
    """One schema of documents."""

    def written(self, document: Any, place: Pointer, fields: Mapping[str, Any]) -> bytes:
        """The bytes behind the schema's id. `fields`: of the result, which the object at `place` gets, and has not.

        Raises NotDescribed: the schema does not describe the document.
        """


class NotDescribed(ValueError):
    """A document that would not come out of a schema's bytes as it is: at which field, and ` Raised: ` with the why."""


class WriterKind(NamedTuple):
    """One of the kinds of schemas that registries have."""

    name: str  # the registry's
    # Of a schema, those that it refers to by name, and the types of the fields that it must have for the result.
    # Raises WrongArgument: it cannot be the schema of JSON documents with such fields.
    writer: Callable[[str, Sequence[tuple[str, str]], Mapping[Pointer, AvroType]], DocumentWriter]
    # The schema of a value that is the result alone. Raises WrongArgument: there is none.
    schema_of_result: Callable[[AvroType], str]


class JsonToFramed(RecordFormat):
    """The schema is the latest of `<output topic>-value` at start. Without a place for the result it is registered."""

    def __init__(
        self,
        registry: SchemaRegistry,
        kind: WriterKind,
        inner: RecordFormat,
        output_topic: str,
        place: Pointer,
        result: AvroType,
        revision: RevisionField | None,
    ) -> None:
        """`inner`: the format of the input, JSON or text. `result`: the type of the result, which goes to `place`."""
        self._registry, self._kind, self._inner, self._place, self._result = registry, kind, inner, place, result
        self._revision = revision
        self._subject = f"{output_topic}-value"
        self._writer: DocumentWriter | None = None
        self._head = b""

    async def check(self) -> None:
        from confluent_kafka.schema_registry import Schema as Registered

        fields = dict[Pointer, AvroType]()
        if self._place.names:
            found = await self._registry.latest(self._subject)
            if found is None:
                raise WrongArgument(f"The schema registry has no schema for {self._subject}. Register one before.")
            schema_id, schema = found
            if schema.schema_type != self._kind.name:
                raise WrongArgument(f"The schema of the output is {schema.schema_type}, not {self._kind.name}.")
            fields[self._place] = self._result
            if self._revision is not None:
                fields[Pointer((*self._place.parent.names, self._revision.name))] = "string"
        else:
            schema = Registered(self._kind.schema_of_result(self._result), self._kind.name)
            schema_id = await self._registry.register(self._subject, schema)
        self._writer = self._kind.writer(schema.schema_str, await self._registry.referenced(schema), fields)
        self._head = _HEAD.pack(0, schema_id)

    def is_ready(self, value: bytes) -> bool:
        return self._writer is not None

    async def prepare(self, values: Sequence[bytes]) -> None:
        if values and self._writer is None:  # the registry was away at start
            await self.check()

    def read(self, value: bytes) -> Any:
        return self._inner.read(value)

    def lacks_object(self, value: bytes) -> bool:
        return self._inner.lacks_object(value)

    def write(self, original: bytes, result: PlainRow | None) -> bytes:
        if not self._place.names:
            return self._written(plain_values(result), {})
        document = self._document(original)
        parent = self._place.parent.find(document)
        if not isinstance(parent, dict):
            raise InvalidRequest(f"There is no object at {str(self._place)!r} for the result.")
        fields = {self._place.names[-1]: plain_values(result)}
        if self._revision is not None:
            fields[self._revision.name] = self._revision.model
        for name in fields:
            parent.pop(name, None)
        return self._written(document, {} if result is None else fields)  # an absent field is null

    def passed(self, original: bytes) -> bytes:
        if not self._place.names:
            raise InvalidRequest("The record has no text, and the result is the whole value.")
        return self._written(self._document(original), {})

    def _document(self, original: bytes) -> Any:
        return read_exactly(original) if isinstance(self._inner, JsonFormat) else {"text": self.read(original)}

    def _written(self, document: Any, fields: Mapping[str, Any]) -> bytes:
        if self._writer is None:
            raise RuntimeError("A value is to be written before its schema was found. This is a bug.")
        try:
            return self._head + self._writer.written(document, self._place.parent, fields)
        except NotDescribed as error:
            reason = f"The record is not what the schema of {self._subject} describes{error}"
            raise InvalidRequest(reason[:_MAX_REASON_CHARS]) from error
