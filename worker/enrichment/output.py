"""An enriched record on its way to the output topic of its route."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from penstock.producer.aiokafka_internals.default_partition import default_partition
from penstock.worker.enrichment.replayed import source_of
from penstock.worker.replies.outlet import OutAnswer

Outcome = Literal["ok", "cached", "passed"]  # with a computed result, with one of the cache, as it was
_PART_BYTES = 256  # that a record of a chunk holds beside its value: a delete has none


@dataclass(slots=True)
class Output(OutAnswer):
    """It has the key and the time of its original, and more headers."""

    topic: str
    outcome: Outcome  # that the metrics count
    chunks: Sequence[bytes] | None = None  # values of the chunks that leave in its place; None: it leaves itself
    is_refused: bool = False  # the output topic has refused one of its chunks: a dead letter says so

    @property
    def timestamp_ms(self) -> int | None:
        """Unix time of its original."""
        given = source_of(self.origin.original).time_ms
        return None if given < 0 else given

    @property
    def num_bytes(self) -> int:
        """Bytes that back-pressure counts."""
        return len(self.value or b"") if self.chunks is None else sum(map(len, self.chunks))

    def partition(self, num_partitions: int) -> int:
        """Of its original's key, by the rule of Kafka's clients; without one, its original's.

        So outputs of one key keep their order, and so do those without a key.
        """
        original = self.origin.original
        if original.key is None:
            return original.partition % num_partitions
        return default_partition(original.key, num_partitions)


@dataclass(slots=True, kw_only=True)
class ChunkOutput(Output):
    """The record of one chunk, or its delete."""

    whole: Output  # whose chunk it is

    @property
    def num_bytes(self) -> int:
        return len(self.value or b"") + _PART_BYTES
