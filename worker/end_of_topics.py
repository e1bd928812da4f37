"""The end of the work of `--once`: both topics are read to their ends, all is answered, and nothing new has come."""

import time

import structlog

from penstock.worker.batching.stage import SequenceDispatcher
from penstock.worker.kafka.backpressure import Backpressure
from penstock.worker.kafka.fetching.consumer import Consumer

_QUIET_S = 5.0  # ample for a bulk job, which sends its next rows when it has the answers to the last
_UNKNOWN_QUIET_S = 30.0  # a topic that no broker knows by now cannot be created, and has no records
_TURN_S = 0.5  # a turn counts for no more: a process that stood still has not looked

log = structlog.get_logger("penstock.worker")


class EndOfTopics:
    """Asked once a turn of the worker, from its event loop."""

    def __init__(self, consumer: Consumer, dispatcher: SequenceDispatcher, backpressure: Backpressure) -> None:
        self._consumer = consumer
        self._dispatcher = dispatcher
        self._backpressure = backpressure
        self._quiet_s = 0.0
        self._looked_at = time.monotonic()

    async def is_reached(self) -> bool:
        """Whether both topics have been at their ends, and answered, for `_QUIET_S`, or longer if one is not known."""
        is_at_end = await self._consumer.is_at_end()
        if is_at_end:
            self._dispatcher.drain()  # no more sequences will come to fill the batches
        elif self._consumer.assigned.is_set():  # a revocation drains for itself
            self._dispatcher.resume()
        num_records = self._backpressure.num_records
        turn_s, self._looked_at = time.monotonic() - self._looked_at, time.monotonic()
        self._quiet_s = self._quiet_s + min(turn_s, _TURN_S) if is_at_end and not num_records else 0.0
        if self._quiet_s < (_QUIET_S if self._consumer.knows_topics else _UNKNOWN_QUIET_S):
            return False
        log.info("end_reached", partitions=self._consumer.num_partitions, unfinished=num_records)
        return True
