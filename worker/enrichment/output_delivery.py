"""Enriched records, until the broker has acknowledged them."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter

from aiokafka.errors import KafkaError, LeaderNotAvailableError, MessageSizeTooLargeError

from penstock.producer.aiokafka_internals.producer import BAD_DESTINATION, BAD_RECORD
from penstock.producer.errors import BackendError, InvalidRequest
from penstock.producer.wire.headers import Headers
from penstock.worker.enrichment.absent_topics import AbsentTopics
from penstock.worker.enrichment.chunk_bounds import ChunkBounds
from penstock.worker.enrichment.chunk_records import ChunkRecords
from penstock.worker.enrichment.output import ChunkOutput, Outcome, Output
from penstock.worker.kafka.backpressure import Backpressure
from penstock.worker.replies.delivery import Delivery
from penstock.worker.replies.outlet import AnswerDropped, AskingOutlet
from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.request import Rejection
from penstock.worker.telemetry.metrics import Metrics

_TOPIC = attrgetter("topic")
_AWAY = (*BAD_DESTINATION, LeaderNotAvailableError)  # of a topic; the last only comes with exactly_once


class OutputDelivery:
    """Sends enriched records. What the output topic refuses becomes a dead letter of the input topic.

    An output topic that stalls, or is gone, holds its route up: its records wait, and count against back-pressure. In
    place of that a reply topic that stalls is given up, as other clients must be answered.
    """

    def __init__(
        self,
        outlet: AskingOutlet,
        backpressure: Backpressure,
        acknowledged: Callable[[Sequence[PendingRecord]], None],
        is_present: Callable[[PendingRecord], bool],
        metrics: Metrics,
        delivery: Delivery,
    ) -> None:
        """`is_present`: see `RecordLedger`. `delivery` keeps the dead letters. For the rest see there."""
        self.absent = AbsentTopics(outlet, is_present)
        self._is_present = is_present
        self._backpressure = backpressure
        self._acknowledged = acknowledged
        self._metrics = metrics
        self._delivery = delivery
        self._chunk_records: dict[str, ChunkRecords] = {}  # by output topic, of routes that make records of chunks

    def add_chunks(self, topic: str, bounds: ChunkBounds) -> None:
        """Outputs for this topic have `chunks`. Called before the first."""
        self._chunk_records[topic] = ChunkRecords(bounds, self._is_present, self._send_chunks)

    def output(
        self,
        record: PendingRecord,
        topic: str,
        value: bytes | None,
        headers: Headers,
        outcome: Outcome,
        chunks: Sequence[bytes] | None = None,
    ) -> Output:
        """An enriched record, or one that passes as it was, which `send` takes. `chunks`: in its place."""
        return Output(record.original.key, value, headers, self._done, record, topic, outcome, chunks)

    def send(self, outputs: Sequence[Output]) -> None:
        """Send enriched records. Those of a key leave in their order."""
        for topic, chosen in groupby(sorted(outputs, key=_TOPIC), _TOPIC):
            together = list(chosen)
            self._backpressure.add_reply_bytes(_num_bytes(together))
            if topic in self._chunk_records:
                self._chunk_records[topic].put(together)
            else:
                self.absent.put(topic, together)

    def _send_chunks(self, outputs: Sequence[Output], parts: Sequence[ChunkOutput]) -> None:
        self._backpressure.add_reply_bytes(_num_bytes(parts) - _num_bytes(outputs))
        for part in parts:
            part.done = self._chunks_done
            part.origin.owe()
        if gone := [output.origin for output in outputs if not output.origin.num_owed]:
            self._acknowledged(gone)
        if parts:
            self.absent.put(parts[0].topic, parts)

    def _done(self, outputs: Sequence[Output], error: KafkaError | None) -> None:
        if isinstance(error, _AWAY):
            self.absent.refused(outputs, error)
            return
        self._backpressure.add_reply_bytes(-_num_bytes(outputs))
        if error is None:
            self.absent.acknowledged(outputs)
            self._count(outputs)
        if error is None or isinstance(error, AnswerDropped):
            self._acknowledged([output.origin for output in outputs])
            return
        self._reject([Rejection(output.origin, None, _refused(output, error)) for output in outputs])

    def _chunks_done(self, parts: Sequence[ChunkOutput], error: KafkaError | None) -> None:
        """A record is acknowledged with the last of its chunks. The first that is refused makes its dead letter."""
        if isinstance(error, _AWAY):
            self.absent.refused(parts, error)
            return
        self._backpressure.add_reply_bytes(-_num_bytes(parts))
        if error is not None and not isinstance(error, AnswerDropped):
            refused: list[Rejection] = []
            for part in parts:
                if not part.whole.is_refused:
                    part.whole.is_refused = True
                    refused.append(Rejection(part.origin, None, _refused(part, error)))
            self._reject(refused)
        ended = [part.whole for part in parts if part.origin.pay()]
        if error is None:
            self.absent.acknowledged(parts)
            self._count([whole for whole in ended if not whole.is_refused])
        self._acknowledged([whole.origin for whole in ended])

    def _count(self, outputs: Sequence[Output]) -> None:
        self._metrics.count("ok", len(outputs))
        for (topic, outcome), count in Counter([(one.origin.source[0], one.outcome) for one in outputs]).items():
            self._metrics.count_route(topic, outcome, count)
        self._show_ages(outputs)

    def _reject(self, rejections: Sequence[Rejection]) -> None:
        if rejections:
            self._metrics.count(rejections[0].error.code, len(rejections))
            self.count_rejected(rejections)
            self._delivery.reject(rejections)

    def close(self) -> None:
        """Send no more chunks."""
        for one in self._chunk_records.values():
            one.close()

    def _show_ages(self, outputs: Sequence[Output]) -> None:
        now_ms = time.time() * 1e3
        for topic, time_ms in {one.origin.source[0]: one.origin.original.timestamp for one in outputs}.items():
            if time_ms >= 0:
                self._metrics.show_route_age(topic, max(0.0, now_ms - time_ms) / 1e3)

    def count_rejected(self, rejections: Sequence[Rejection]) -> None:
        """Count records of routes that become dead letters."""
        for (topic, code), count in Counter([(one.record.source[0], one.error.code) for one in rejections]).items():
            self._metrics.count_route(topic, code, count)


def _refused(output: Output, error: KafkaError) -> InvalidRequest | BackendError:
    num_bytes = len(output.value or b"")
    if isinstance(error, MessageSizeTooLargeError):
        return InvalidRequest(f"The enriched record of {num_bytes:,} bytes is larger than {output.topic} takes.")
    if isinstance(error, BAD_RECORD):
        key = "" if output.key is not None else ", and no key, which a compacted topic needs"
        time = f"It has the time {output.timestamp_ms}{key}."
        return InvalidRequest(f"{output.topic} does not take the enriched record. {time} Kafka: {type(error).message}")
    refused = BackendError(f"The enriched record could not be delivered: {error!r}")
    refused.__cause__ = error
    return refused


def _num_bytes(outputs: Sequence[Output]) -> int:
    return sum([output.num_bytes for output in outputs])
