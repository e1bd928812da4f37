"""An enriched record on its way to the output topic of its route."""

from dataclasses import dataclass
from typing import Literal

from penstock.producer.aiokafka_internals.default_partition import default_partition
from penstock.worker.enrichment.replayed import source_of
from penstock.worker.replies.outlet import OutAnswer

Outcome = Literal["ok", "cached", "passed"]  # with a computed result, with one of the cache, as it was


@dataclass(slots=True)
class Output(OutAnswer):
    """It has the key and the time of its original, and more headers."""

    topic: str
    outcome: Outcome  # that the metrics count

    @property
    def timestamp_ms(self) -> int | None:
        """Unix time of its original."""
        given = source_of(self.origin.original).time_ms
        return None if given < 0 else given

    def partition(self, num_partitions: int) -> int:
        """Of its key, by the rule of Kafka's clients; without one, its original's, so that those keep their order."""
        if self.key is None:
            return self.origin.original.partition % num_partitions
        return default_partition(self.key, num_partitions)
