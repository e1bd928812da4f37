"""The `traceparent` header of a record: W3C Trace Context."""

import re
from typing import NamedTuple, Self

# Version, trace id, parent id, flags; versions after 00 may add more. Ids of zeros are invalid.
_FORM = re.compile(rb"(?!ff|00.{54})[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1  # the flag's bit


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
    """Whether the sender of a record has decided that its trace is not recorded. An invalid header decides nothing."""
    found = TraceParent.parse(header)
    return found is not None and not int(found.trace_flags, 16) & _SAMPLED


def format_traceparent(trace_id: int, span_id: int, trace_flags: int) -> bytes:
    """The header that names a span."""
    return b"00-%032x-%016x-%02x" % (trace_id, span_id, trace_flags)
