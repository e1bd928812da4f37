"""Formats of records: how a route reads the values of its input topic, and writes those of its output topic."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

from penstock.producer.errors import InvalidRequest
from penstock.producer.wire.plain_rows import PlainRow, plain_json
from penstock.worker.routes.json_format import add_json, has_schema, lacks_object, read_json
from penstock.worker.routes.pointer import Pointer
from penstock.worker.routes.revision_field import RevisionField

MAX_BYTES = 32 * 1024 * 1024  # that a record takes in the records of its chunks: half of the answers that may wait


class RecordFormat(Protocol):
    """Called on the event loop. `read`, `write` and `passed` are for values that are ready."""

    async def check(self) -> None:
        """Check what can be known before a record comes. Called at start. Raises WrongArgument."""
        return

    def is_ready(self, value: bytes) -> bool:
        """Whether a value can be read, or refused, without `prepare`."""
        return True

    async def prepare(self, values: Sequence[bytes]) -> None:
        """Fetch what values need from elsewhere, however long that takes. `read` refuses those whose need is vain.

        Raises WrongArgument for what `check` would have refused.
        """
        return

    @abstractmethod
    def read(self, value: bytes) -> Any:
        """The document in a value. Raises InvalidRequest: it is not of the format."""

    @abstractmethod
    def lacks_object(self, value: bytes) -> bool:
        """Whether the object that would get the result is null or absent, as in a delete. Raises as `read`."""

    @abstractmethod
    def write(self, original: bytes, result: PlainRow | None) -> bytes:
        """The value of the enriched record. Raises InvalidRequest: the original has no place for the result."""

    def write_each(self, original: bytes, results: Sequence[PlainRow]) -> Sequence[bytes]:
        """As `write`, a value for each of several results. Raises also where they are too large together."""
        if (num_bytes := len(original) * len(results)) > MAX_BYTES:
            raise InvalidRequest(
                f"The {len(results):,} records of its chunks have {num_bytes:,} bytes of this record, and may have "
                f"{MAX_BYTES:,}. In JSON with an empty result_field they have none."
            )
        return [self.write(original, result) for result in results]

    def passed(self, original: bytes) -> bytes:
        """The value of a record without a result."""
        return original


class JsonFormat(RecordFormat):
    """The document and the result are JSON."""

    def __init__(self, place: Pointer, example: PlainRow, revision: RevisionField | None = None) -> None:
        """`place`: of the result. `example`: of a result, for the schema of Kafka Connect where the result is null."""
        self._place, self._example, self._revision = place, example, revision

    def read(self, value: bytes) -> Any:
        return read_json(value)

    def lacks_object(self, value: bytes) -> bool:
        return lacks_object(value, self._place)

    def write(self, original: bytes, result: PlainRow | None) -> bytes:
        return add_json(original, self._place, result, self._example, self._revision)

    def write_each(self, original: bytes, results: Sequence[PlainRow]) -> Sequence[bytes]:
        if self._place.names or has_schema(original):
            return super().write_each(original, results)
        return list(map(plain_json, results))


class TextFormat(RecordFormat):
    """The value is the text. What is written is a JSON object with it."""

    def __init__(self, place: Pointer, revision: RevisionField | None = None) -> None:
        """`place`: of the result."""
        self._place, self._revision = place, revision

    def read(self, value: bytes) -> Any:
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"The record's value is not UTF-8, at byte {error.start}.") from error

    def lacks_object(self, value: bytes) -> bool:
        return False

    def write(self, original: bytes, result: PlainRow | None) -> bytes:
        return add_json(plain_json({"text": self.read(original)}), self._place, result, revision=self._revision)

    def write_each(self, original: bytes, results: Sequence[PlainRow]) -> Sequence[bytes]:
        return super().write_each(original, results) if self._place.names else list(map(plain_json, results))
