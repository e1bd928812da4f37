"""A record's deadline, over all the times that it is sent."""

import time
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Self

from penstock.producer.tracing.switch import calling_span

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext


@dataclass(slots=True)
class Attempts:
    """A record's deadline, and how often it was refused.

    Made once for a record, and kept when the record is sent in parts or without its rows at fault.
    """

    deadline: float  # monotonic seconds, which no step of the clock moves
    unix_deadline: float  # the same moment, as workers are told it
    refused: int = 0
    callers: "tuple[SpanContext, ...]" = ()  # spans of the calls that share the record

    @classmethod
    def within(cls, timeout_s: float) -> Self:
        """Of a record that is made now, by the first of its calls."""
        attempts = cls(monotonic() + timeout_s, time.time() + timeout_s)
        attempts.add_caller()
        return attempts

    def add_caller(self) -> None:
        """Another call shares the record. Called inside it."""
        caller = calling_span()
        if caller is not None and caller not in self.callers:
            self.callers += (caller,)
