"""The way of answers: at once to their topics, or into transactions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from aiokafka.errors import KafkaError

from penstock.producer.transport.outbox import OutRecord
from penstock.worker.requests.record import PendingRecord


class AnswerDropped(KafkaError):  # type: ignore[misc]  # aiokafka has no type information
    """The partition was given up, or its offsets begin again, before the answer was known to be committed.

    A record that is still there is answered by the partition's next owner.
    """


@dataclass(slots=True)
class OutAnswer(OutRecord):
    """A reply, an error reply or a dead letter."""

    origin: PendingRecord  # that it answers

    @property
    def origins(self) -> Sequence[PendingRecord]:
        """All records that it answers: several of one partition, for a dead letter that they share."""
        return (self.origin,)


class Outlet(Protocol):
    """Sends answers. `done` of each is called once: when the broker has it for good or refuses it, or it is dropped."""

    def put(self, topic: str, partition: int | None, records: Sequence[OutAnswer]) -> None:
        """Send answers, at least one. A partition of None is chosen by each record's key. Never blocks."""


class AskingOutlet(Outlet, Protocol):
    """It can also ask the broker for a topic."""

    async def partitions(self, topic: str) -> int:
        """Number of partitions of a topic. Raises UnknownTopicOrPartitionError, and KafkaError if no broker answers."""
