"""Records that `penstock replay --route` sends: copies, whose enriched records are those of their originals."""

from typing import NamedTuple

from penstock.producer.wire.headers import REPLAY_RUN, REPLAY_SOURCE, REPLAY_TIME_MS, position
from penstock.producer.wire.topics import replay_topic
from penstock.worker.kafka.kafka_record import KafkaRecord

IN_REPLAYS = {REPLAY_SOURCE, REPLAY_TIME_MS, REPLAY_RUN}  # headers of copies, which their enriched records do not have
_SUFFIX = replay_topic("")


class OriginalSource(NamedTuple):
    """Where and when the record was written that is enriched."""

    position: bytes
    time_ms: int
    is_own: bool = True  # of the record that was read; else of what it is a copy of


def source_of(record: KafkaRecord) -> OriginalSource:
    """Of a record that a route has read. Copies are known by their topic and their headers, together."""
    if record.topic.endswith(_SUFFIX):
        headers = dict(record.headers)
        of, time_ms = headers.get(REPLAY_SOURCE), headers.get(REPLAY_TIME_MS) or b""
        if of and time_ms.isdigit() and len(time_ms) < 16:
            return OriginalSource(of, int(time_ms), is_own=False)
    return OriginalSource(position(record.topic, record.partition, record.offset), record.timestamp)
