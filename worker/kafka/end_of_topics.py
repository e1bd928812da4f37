"""The end of a run with `once`: both topics are read to their ends, answered, and stay quiet."""

import time

from aiokafka import TopicPartition

from penstock.worker.kafka.consumer import Consumer
from penstock.worker.stop_signal import StopSignal

_QUIET_S = 5.0  # ample for a bulk job, which sends its next rows when it has the answers to the last


class EndOfTopics:
    """Follows the ends of the assigned partitions. Ask `is_reached` after each poll."""

    def __init__(self, consumer: Consumer, stop: StopSignal) -> None:
        self._consumer = consumer
        self._stop = stop
        self._ends: dict[TopicPartition, int] = {}
        self._quiet_since = time.monotonic()

    @property
    def is_quiet(self) -> bool:
        """Whether the last `stir` is long enough ago."""
        return time.monotonic() - self._quiet_since >= _QUIET_S

    @property
    def num_partitions(self) -> int:
        """Partitions whose ends were last asked for."""
        return len(self._ends)

    def stir(self) -> None:
        """There is work: the quiet time begins anew."""
        self._quiet_since = time.monotonic()

    async def is_reached(self) -> bool:
        """Whether everything has been handed out, up to the ends as they are now."""
        if await self._stop.unless_stopped(self._consumer.reached(self._ends)):
            self._ends = await self._stop.unless_stopped(self._consumer.end_offsets()) or {}
        if not self._consumer.assigned.is_set():
            return False
        return bool(await self._stop.unless_stopped(self._consumer.reached(self._ends)))
