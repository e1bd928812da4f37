"""The `traceparent` header of a record: W3C Trace Context."""

import re
from typing import NamedTuple, Self

# Version, trace id, parent id, flags; later versions may add more. Ids of zeros are invalid.
_FORM = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_FLAGS_AT = 54  # of the digit whose lowest bit is the flag `sampled`
_EVEN_DIGITS = b"02468ace"


class TraceParent(NamedTuple):
    """A span of another process, by its ids in hexadecimal."""

    trace_id: str
    span_id: str
    trace_flags: str

    @classmethod
    def parse(cls, header: bytes | None) -> Self | None:
        """The header's content; None without a valid header."""
        found = _FORM.fullmatch(header or b"")
        return None if found is None else cls(*[part.decode() for part in found.group(1, 2, 3)])


def is_unsampled(header: bytes | None) -> bool:
    """Whether the sender of a record has decided that its trace is not recorded. Reads the flag alone."""
    return header is not None and len(header) > _FLAGS_AT and header[_FLAGS_AT] in _EVEN_DIGITS


def format_traceparent(trace_id: int, span_id: int, trace_flags: int) -> bytes:
    """The header that names a span."""
    return b"00-%032x-%016x-%02x" % (trace_id, span_id, trace_flags)
