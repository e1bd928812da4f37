"""Types of Kafka's schemas that aiokafka has not, or not in all versions."""

from aiokafka.protocol.types import AbstractType


class Uuid(AbstractType[bytes]):  # type: ignore[misc]  # aiokafka has no type information
    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value


class Tags(AbstractType[dict[int, bytes]]):  # type: ignore[misc]  # as above
    """Few of them, and short ones."""

    @classmethod
    def encode(cls, value: dict[int, bytes]) -> bytes:
        return bytes([len(value)]) + b"".join(bytes([tag, len(raw)]) + raw for tag, raw in value.items())


TAGS = ("tags", Tags)
