"""Requests of flexible versions (KIP-482), which encode themselves and decode their answers in one pass.

aiokafka calls a function for each field, and declares such versions in a new way in 0.15. To go, it needs the versions
with topic ids itself (13 of Fetch, and 10 of Metadata), and a codec that does not take longer than a send.
"""

import struct
from io import BytesIO
from typing import Any, NamedTuple, Protocol

from aiokafka.protocol.api import RequestStruct
from aiokafka.protocol.types import Schema

_HEADER = struct.Struct(">hhih")  # API, its version, correlation id, size of the client's id
_CORRELATION_ID = struct.Struct(">i")
NO_TAGS = b"\0"
_SHORT = [bytes([size + 1]) for size in range(0x7F)]  # sizes


class Answer(Protocol):
    """Decodes the answer to one request."""

    def decode(self, data: BytesIO) -> Any:
        """Called by aiokafka with the bytes behind the header.

        Raises struct.error, IndexError or ValueError if they end early.
        """


class _Header(bytes):
    """A request's header, encoded."""

    def encode(self) -> bytes:
        return self


class _AnswerHeader(NamedTuple):
    correlation_id: int


class FlexibleRequest(RequestStruct):  # type: ignore[misc]  # aiokafka has no type information
    """A request as aiokafka's connection sends it."""

    API_KEY, API_VERSION, SCHEMA = -1, -1, Schema()
    RESPONSE_TYPE: Any = None

    def __init__(self, body: bytes, answer: Answer) -> None:
        """`body`: the bytes behind the header."""
        super().__init__()
        self._body = body
        self.RESPONSE_TYPE = answer

    def encode(self) -> bytes:
        return self._body

    def build_request_header(self, correlation_id: int, client_id: str) -> _Header:
        name = client_id.encode()
        return _Header(_HEADER.pack(self.API_KEY, self.API_VERSION, correlation_id, len(name)) + name + NO_TAGS)

    def parse_response_header(self, read_buffer: BytesIO) -> _AnswerHeader:
        """`read_buffer` is left behind the header."""
        raw = read_buffer.getbuffer()
        (correlation_id,) = _CORRELATION_ID.unpack_from(raw)
        read_buffer.seek(behind_tags(raw, _CORRELATION_ID.size))
        return _AnswerHeader(correlation_id)


def compact(size: int) -> bytes:
    """The size of an array or of a text."""
    if size < 0x7F:
        return _SHORT[size]
    number, encoded = size + 1, bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def varint(raw: bytes | memoryview, at: int) -> tuple[int, int]:
    """An unsigned number, seven bits a byte, and where it ends."""
    number, shift = raw[at], 7
    if number < 0x80:
        return number, at + 1
    number &= 0x7F
    while True:
        at += 1
        number |= (raw[at] & 0x7F) << shift
        if raw[at] < 0x80:
            return number, at + 1
        if (shift := shift + 7) > 28:
            raise struct.error("A number is too long.")


def behind_tags(raw: bytes | memoryview, at: int) -> int:
    """The end of a part that ends with tags."""
    num_tags, at = varint(raw, at)
    for _ in range(num_tags):
        _, at = varint(raw, at)
        size, at = varint(raw, at)
        at += size
    return at


def behind_text(raw: bytes, at: int) -> int:
    """The end of a text, which may be null."""
    size, at = varint(raw, at)
    return at + max(0, size - 1)
