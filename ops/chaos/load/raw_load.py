"""Plain producers of another library, librdkafka, with every codec: good requests, malformed ones, and bombs."""

import asyncio
import struct
import uuid
from collections import Counter
from functools import partial
from typing import Any

import msgpack
from confluent_kafka import KafkaException, Producer

from penstock.ops.chaos.load.asked import MOST_UNPACKED_BYTES
from penstock.ops.chaos.load.sequence_mix import SequenceMix
from penstock.producer.wire.topics import bulk_topic

RAW_REPLIES = "penstock.replies.raw"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_TICK_S = 0.05
_CATCH_UP_S = 10.0  # at most this much of the rate is made up for after an outage
_MALFORMED_SHARE, _UNADDRESSED_SHARE, _BULK_SHARE, _KEY_SHARE = 0.002, 0.002, 0.2, 0.1
_BOMB_SHARE, _FIRST_BOMB = 0.0001, 20  # so many records before the first, for short runs
_BOMB_BYTES = MOST_UNPACKED_BYTES + (1 << 20)  # some kilobytes on the wire
_MOST_WAITING = 5000  # records without acknowledgement: then the producers wait
_OPTIONS = {
    "acks": "all",
    "linger.ms": 200,  # as of pipelines: three brokers and all else share the machine
    "message.max.bytes": 2 * _BOMB_BYTES,
    "message.timeout.ms": 150_000,  # longer than any outage
    "socket.timeout.ms": 10_000,
    "topic.metadata.refresh.interval.ms": 10_000,  # partitions are added
    "log_level": 0,  # a broker's end is no news
}


class RawLoad:
    """Sends records at a rate until `run` is told to end. `seed` decides every record, but not when it is sent."""

    def __init__(self, servers: str, model: str, topic: str, rate: float, seed: int) -> None:
        """`topic`: of online requests. `rate`: records a second."""
        self.acknowledged: set[bytes] = set()  # correlation ids
        self.acknowledged_by_codec: Counter[str] = Counter()  # a bomb is gzip too
        self.num_unacknowledged = 0  # their producers gave up; they may be in the topic
        self._servers = servers
        self._model = model
        self._topics = (topic, bulk_topic(topic))
        self._rate = rate
        self._sequences = SequenceMix(seed)
        self._random = self._sequences.random
        self._waiting = 0
        self._num_sent = 0

    async def run(self, is_over: asyncio.Event) -> None:
        """Send until `is_over`. Returns when every record is acknowledged or failed."""
        producers = [(codec, self._producer(codec)) for codec in CODECS]
        # A bomb alone in its batch is all that is lost.
        bomber = "gzip", self._producer("gzip", **{"batch.num.messages": 1})
        owed = 0.0
        while not is_over.is_set():
            owed = min(owed + self._rate * _TICK_S, _CATCH_UP_S * self._rate)
            while owed >= 1 and self._waiting < _MOST_WAITING:
                owed -= 1
                self._send_one(producers, bomber)
            for _, producer in (*producers, bomber):
                producer.poll(0)
            await asyncio.sleep(_TICK_S)
        while self._waiting:
            for _, producer in (*producers, bomber):
                producer.poll(0)
            await asyncio.sleep(_TICK_S)

    def _producer(self, codec: str, **more: int) -> Any:
        return Producer({"bootstrap.servers": self._servers, "compression.type": codec, **_OPTIONS, **more})

    def _send_one(self, producers: list[tuple[str, Any]], bomber: tuple[str, Any]) -> None:
        """Send one record by any producer, or a bomb by its own."""
        number, (codec, producer) = self._random.random(), self._random.choice(producers)
        correlation_id = uuid.UUID(int=self._random.getrandbits(128)).bytes
        headers = [("kafka_correlationId", correlation_id)]
        if number > _UNADDRESSED_SHARE:
            headers.append(("kafka_replyTopic", RAW_REPLIES.encode()))
        ids, _ = self._sequences.take()
        lens = struct.pack("<I", len(ids) // 4)
        body = msgpack.packb({"v": 1, "model": self._model, "task": "embed", "ids": ids, "lens": lens})
        if number > 1 - _MALFORMED_SHARE:
            body = self._random.randbytes(len(body))
        if self._num_sent == _FIRST_BOMB or abs(number - 0.5) < _BOMB_SHARE / 2:
            (codec, producer), body = bomber, bytes(_BOMB_BYTES)
        self._num_sent += 1
        topic = self._topics[self._random.random() < _BULK_SHARE]
        key = self._random.randbytes(8) if self._random.random() < _KEY_SHARE else None
        self._waiting += 1
        ended = partial(self._ended, correlation_id, codec)
        try:
            producer.produce(topic, body, key, headers=headers, on_delivery=ended)
        except (BufferError, KafkaException) as error:
            ended(error, None)

    def _ended(self, correlation_id: bytes, codec: str, error: object, _: object) -> None:
        self._waiting -= 1
        if error is None:
            self.acknowledged.add(correlation_id)
            self.acknowledged_by_codec[codec] += 1
        else:
            self.num_unacknowledged += 1
