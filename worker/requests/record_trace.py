"""Facts of a sampled record for its trace, until its answer is acknowledged. Without OpenTelemetry."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.producer.errors import PenstockError


class TracedStage(NamedTuple):
    """One part of a record's way, in monotonic seconds."""

    name: str
    started: float
    ended: float
    attributes: Mapping[str, str | int] = {}
    link: Any = None  # the context of another span


@dataclass(slots=True, eq=False)
class RecordTrace:
    """The trace of a record, which becomes spans when the record's answer is acknowledged.

    A record that is given up becomes none: its partition's next owner traces it.
    """

    span: Any  # OpenTelemetry's span `process <topic>`, which has begun
    ids: Mapping[str, str]  # of that span: `trace_id`, `span_id` and `trace_flags` of log events
    clock_ns: int  # Unix time in nanoseconds at monotonic zero
    settled: float  # monotonic seconds at which the last stage ended, so far
    reply_topic: str | None
    stages: list[TracedStage] = field(default_factory=list)
    error: PenstockError | None = None  # that the record was answered with

    def add(self, stage: TracedStage) -> None:
        """Another part of the way has ended."""
        self.stages.append(stage)
        self.settled = max(self.settled, stage.ended)

    def note_reply(self, topic: str) -> None:
        """The record's answer goes to this topic."""
        self.reply_topic = topic

    def note_error(self, error: PenstockError) -> None:
        """The record is answered with an error."""
        self.error = error

    def unix_ns(self, seconds: float) -> int:
        """A monotonic time as OpenTelemetry counts."""
        return self.clock_ns + int(seconds * 1e9)
