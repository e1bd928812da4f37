"""The fetch stage: polls at all times, pauses topics by back-pressure, and offers what may be processed."""

from penstock.worker.kafka.backpressure import Backpressure
from penstock.worker.kafka.consumer import Consumer
from penstock.worker.kafka.fetch_buffer import FetchBuffer
from penstock.worker.stop_signal import StopSignal

_POLL_MS = 200
_PAUSED_POLL_MS = 10  # soon enough to notice that there is room again


class Fetcher:
    """Polls into a fetch buffer, whose `put` the consumer calls with what it hands out."""

    def __init__(
        self,
        consumer: Consumer,
        buffer: FetchBuffer,
        backpressure: Backpressure,
        stop: StopSignal,
        topics: tuple[str, str],
    ) -> None:
        """`topics`: the request topic and the bulk topic."""
        self._consumer = consumer
        self._buffer = buffer
        self._backpressure = backpressure
        self._stop = stop
        self._topic, self._bulk_topic = topics

    async def fetch(self) -> None:
        """Pause or resume each topic, then poll once. Returns early at a stop."""
        held, consumer = self._backpressure, self._consumer
        is_full = held.is_full() or self._buffer.has_records(bulk=False)
        self._pause_or_resume(self._topic, pause=is_full, resume=held.has_room())
        self._pause_or_resume(self._bulk_topic, pause=held.is_full(bulk=True), resume=held.has_room(bulk=True))
        await self._stop.unless_stopped(consumer.poll(_PAUSED_POLL_MS if consumer.is_paused else _POLL_MS))

    def can_take(self, *, bulk: bool) -> bool:
        """Whether the buffer has records of the bulk topic, or of the other, and there is room to process them."""
        is_allowed = self._backpressure.can_admit(bulk=bulk) and not self._stop.is_set()
        return is_allowed and self._buffer.has_records(bulk=bulk)

    def _pause_or_resume(self, topic: str, *, pause: bool, resume: bool) -> None:
        if pause:
            self._consumer.pause(topic)
        elif resume and self._consumer.assigned.is_set():
            self._consumer.resume(topic)
