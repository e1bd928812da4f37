"""The end of the work of `--once`: both topics are read to their ends, all is answered, and nothing new has come."""

import time

import structlog

from penstock.worker.batching.stage import SequenceDispatcher
from penstock.worker.kafka.backpressure import Backpressure
from penstock.worker.kafka.consumer import Consumer

_QUIET_S = 5.0  # ample for a bulk job, which sends its next rows when it has the answers to the last

log = structlog.get_logger("penstock.worker")


class EndOfTopics:
    """Asked once a turn of the worker, from its event loop."""

    def __init__(self, consumer: Consumer, dispatcher: SequenceDispatcher, backpressure: Backpressure) -> None:
        self._consumer = consumer
        self._dispatcher = dispatcher
        self._backpressure = backpressure
        self._quiet_since = time.monotonic()

    async def is_reached(self) -> bool:
        """Whether both topics have been at their ends, and answered, for `_QUIET_S`."""
        is_at_end = await self._consumer.is_at_end()
        if is_at_end:
            self._dispatcher.drain()  # no more sequences will come to fill the batches
        elif self._consumer.assigned.is_set():  # a revocation drains for itself
            self._dispatcher.resume()
        num_records = self._backpressure.num_records
        if not is_at_end or num_records:
            self._quiet_since = time.monotonic()
        if time.monotonic() - self._quiet_since < _QUIET_S:
            return False
        log.info("end_reached", partitions=self._consumer.num_partitions, unfinished=num_records)
        return True
