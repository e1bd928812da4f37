"""One Kafka record and where it is in its life, from the poll to the acknowledged answer."""

import hashlib
from dataclasses import dataclass, field
from enum import Enum

from penstock.producer.errors import PenstockError
from penstock.worker.kafka.kafka_record import NO_TOPIC_ID, KafkaRecord
from penstock.worker.kafka.progress.offsets import Source
from penstock.worker.requests.record_trace import RecordTrace

LONG_BYTES = 64 * 1024  # of text: some 10 ms in the tokenizer


class RecordState(Enum):
    """The states of a record, in the order of its life. Only `RecordLedger` changes them."""

    RECEIVED = "received"  # polled; it waits in the fetch buffer
    ADMITTED = "admitted"  # this worker has to answer it; it is being validated and prepared
    QUEUED = "queued"  # valid: its sequences wait for the cache or the engine
    ANSWERED = "answered"  # its reply, error reply or dead letter is on the way to the broker
    ACKNOWLEDGED = "acknowledged"  # the broker has the answer; the offset may be committed
    RELEASED = "released"  # in place of an answer it was given up: the partition's next owner reads it again


UNANSWERED = (RecordState.ADMITTED, RecordState.QUEUED)


@dataclass(slots=True, eq=False)
class PendingRecord:
    """A record that the worker has polled and not finished.

    `RecordLedger` changes its state, epoch and number of sequences. All else changes by the methods.
    """

    original: KafkaRecord  # as it was read: a dead letter carries it
    source: Source  # its topic and partition
    from_bulk_topic: bool
    topic_id: bytes = NO_TOPIC_ID
    state: RecordState = field(default=RecordState.RECEIVED, init=False)
    epoch: int = 0  # of its partition's assignment, in which it was admitted; see `OffsetTracker.epoch`
    num_sequences: int = field(default=0, init=False)  # queued; 0 before
    # Engine runs that failed with it, or deliveries that ended a worker; 1 without either:
    num_attempts: int = field(default=1, init=False)
    is_poison: bool = field(default=False, init=False)  # it has ended `num_attempts` workers, and is not run again
    num_owed: int = field(default=0, init=False)  # error replies and dead letters that are not acknowledged
    trace: RecordTrace | None = field(default=None, init=False)  # of a record whose trace is recorded
    num_bytes: int = field(init=False)  # of its value
    held_bytes: int = field(init=False)  # of its value, key and headers: what it holds in memory

    def __post_init__(self) -> None:
        original = self.original
        self.num_bytes = len(original.value or b"")
        self.held_bytes = self.num_bytes + len(original.key or b"")
        for name, value in original.headers:
            self.held_bytes += len(name) + len(value or b"")

    @property
    def reply_key(self) -> bytes:
        """The key of every answer to it, so that readers can drop duplicates: never that of another record.

        It is a hash of where the record is. The topic's id tells a topic from one of its name that was deleted before,
        and the timestamp tells records of one offset apart where a broker has no ids or has lost the end of its log.
        Nothing else that the sender chooses has a part in it, so nobody gets the key of another record by asking.
        """
        return place_key(self.original, self.topic_id)

    @property
    def is_unanswered(self) -> bool:
        """Whether it was admitted, and is neither answered nor given up."""
        return self.state in UNANSWERED

    @property
    def is_long(self) -> bool:
        """Whether it is online and takes so long to process that others must not wait for it."""
        return self.num_bytes > LONG_BYTES and not self.from_bulk_topic

    def note_attempts(self, num_attempts: int) -> None:
        """The engine has failed with it so often."""
        self.num_attempts = num_attempts

    def note_poison(self, num_deaths: int) -> None:
        """It has ended so many workers: it is answered with an error, and not run."""
        self.num_attempts, self.is_poison = num_deaths, True

    def owe(self) -> None:
        """An error reply or a dead letter, another one, is on its way to the broker."""
        self.num_owed += 1

    def pay(self) -> bool:
        """The broker has one of those. Returns whether it was the last."""
        self.num_owed -= 1
        return self.num_owed == 0

    def begin_trace(self, trace: RecordTrace) -> None:
        """The record is traced from here on."""
        self.trace = trace

    def note_error(self, error: PenstockError) -> None:
        """The record is answered with an error: its trace says so."""
        if self.trace is not None:
            self.trace.note_error(error)


def place_key(record: KafkaRecord, topic_id: bytes) -> bytes:
    """The key of a record's answers. Its dead letter has it too, if the record has no key."""
    place = f"{record.topic}-{record.partition}-{record.offset}-{record.timestamp}".encode()
    return hashlib.blake2b(topic_id + place, digest_size=16).digest()
