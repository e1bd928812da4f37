"""Enriched records whose output topic is gone, or refuses this worker: they wait until it takes records again."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter

import structlog
from aiokafka.errors import KafkaError

from penstock.worker.enrichment.output import Output
from penstock.worker.replies.outlet import AnswerDropped, AskingOutlet
from penstock.worker.requests.record import PendingRecord
from penstock.worker.stop_signal import watched

_RETRY_S = 5.0
_TOPIC = attrgetter("topic")

log = structlog.get_logger("penstock.routes")


class AbsentTopics:
    """Called on the event loop. No record is at fault for its output topic, so none becomes a dead letter.

    Records of a key leave in their order: while some wait for a topic, those that come after them wait too.
    """

    def __init__(
        self,
        outlet: AskingOutlet,
        is_present: Callable[[PendingRecord], bool],
        retry_s: float = _RETRY_S,
    ) -> None:
        """`is_present`: whether this worker still has the record's partition. Outputs of the others are dropped."""
        self._outlet, self._is_present, self._retry_s = outlet, is_present, retry_s
        self._away_since: dict[str, float] = {}  # topics that have refused, and have taken nothing since
        self._held: dict[str, list[Output]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def put(self, topic: str, outputs: Sequence[Output]) -> None:
        """Send outputs of one topic, or hold them behind those that wait for it."""
        if topic in self._held:
            self._held[topic] += outputs
        else:
            self._outlet.put(topic, None, outputs)

    def refused(self, outputs: Sequence[Output], error: KafkaError) -> None:
        """Their topics are at fault. They are sent again, until they are taken."""
        for topic, chosen in groupby(sorted(outputs, key=_TOPIC), _TOPIC):
            if topic not in self._away_since:
                self._away_since[topic] = time.monotonic()
                log.error("output_topic_away", topic=topic, error=repr(error))
            self._held.setdefault(topic, []).extend(chosen)
            if topic not in self._tasks:
                self._tasks[topic] = watched(self._send_again(topic))

    def acknowledged(self, outputs: Iterable[Output]) -> None:
        """The broker has these."""
        for topic in self._away_since.keys() & {output.topic for output in outputs} if self._away_since else ():
            seconds = round(time.monotonic() - self._away_since.pop(topic), 3)
            log.info("output_topic_back", topic=topic, seconds=seconds)

    def counts(self) -> Mapping[tuple[str, ...], float]:
        """Number of outputs that wait for each topic. Called from any thread."""
        return {(topic,): len(self._held.get(topic, ())) for topic in list(self._away_since)}

    def close(self) -> None:
        """Send nothing more. The next owners of the partitions enrich what waits."""
        for task in self._tasks.values():
            task.cancel()

    async def _send_again(self, topic: str) -> None:
        while True:
            await asyncio.sleep(self._retry_s)
            self._let_go(topic)
            try:
                await self._outlet.partitions(topic)
                break
            except (KafkaError, OSError):
                continue
        del self._tasks[topic]
        self._let_go(topic)
        # Some may have been refused after others that came later. Keys have the order of their partition.
        held = sorted(self._held.pop(topic), key=lambda one: (one.origin.source, one.origin.original.offset))
        if held:
            self._outlet.put(topic, None, held)

    def _let_go(self, topic: str) -> None:
        """Drop what waits of lost partitions, which would else count against back-pressure until the topic is back."""
        held = self._held[topic]
        self._held[topic] = [output for output in held if self._is_present(output.origin)]
        if gone := [output for output in held if not self._is_present(output.origin)]:
            gone[0].done(gone, AnswerDropped())  # that of all: a topic gets records, or records of chunks
