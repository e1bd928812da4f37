"""Requests of flexible versions (KIP-482), which encode themselves and decode their answers in one pass.

aiokafka calls a function for each field, and declares such versions in a new way in 0.15. To go, it needs the versions
with topic ids itself: 13 of Fetch, and 10 of Metadata.
"""

import struct
from io import BytesIO
from typing import Any, Protocol

from aiokafka.protocol.api import RequestHeader_v2, RequestStruct, ResponseHeader_v1
from aiokafka.protocol.types import Schema


class Answer(Protocol):
    """Decodes the answer to one request."""

    def decode(self, data: BytesIO) -> Any:
        """Called by aiokafka with the bytes behind the header. Raises struct.error or IndexError if they end early."""


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

    def build_request_header(self, correlation_id: int, client_id: str) -> RequestHeader_v2:
        return RequestHeader_v2(self, correlation_id=correlation_id, client_id=client_id)

    def parse_response_header(self, read_buffer: BytesIO) -> ResponseHeader_v1:
        return ResponseHeader_v1.decode(read_buffer)


def compact(size: int) -> bytes:
    """The size of an array or of a text."""
    number, encoded = size + 1, bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def varint(raw: bytes, at: int) -> tuple[int, int]:
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


def behind_tags(raw: bytes, at: int) -> int:
    """The end of a part that ends with tags."""
    num_tags, at = varint(raw, at)
    for _ in range(num_tags):
        _, at = varint(raw, at)
        size, at = varint(raw, at)
        at += size
    return at
