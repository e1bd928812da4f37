"""Records of routes, in JSON and in Avro: updates of a few keys, deletes, and records that are owed dead letters."""

import asyncio
import json
import random
import struct
import zlib
from io import BytesIO
from typing import Any

import fastavro
from confluent_kafka import KafkaException, Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

JSON, AVRO = "chaos.json", "chaos.avro"  # input topics
TEXT, CODE = "chaos-text", "chaos-code"  # headers: the text that is enriched; the error that the record is owed
_NUM_KEYS, _NUM_SCHEMAS = 40, 50
_SCHEMA_EVERY = 100  # records of Avro: then they have another schema, of which no member knows
_TICK_S, _MOST_WAITING, _CATCH_UP_S = 0.05, 5000, 10.0
_UNKNOWN_ID = 1 << 30  # of a schema
_POISON_TEXT = "a\uff5e"  # the tokenizer makes the token POISON of it
_WORDS = ("card", "lost", "where", "money", "bank", "please", "transfer", "top", "up", "wrong")
_OPTIONS = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 50,
    "message.timeout.ms": 150_000,  # longer than any outage
    "log_level": 0,
}


class RouteLoad:
    """Sends records at a rate until `run` is told to end. `seed` decides every record, but not when it is sent."""

    def __init__(self, servers: str, partitions: int, rate: float, seed: int) -> None:
        self.acknowledged: set[tuple[str, int, int]] = set()  # topics, partitions and offsets
        self._servers, self._partitions, self._rate = servers, partitions, rate
        self._random = random.Random(seed)
        self._schemas: list[tuple[int, Any]] = []
        self._waiting = self._num_sent = self._num_avro = 0

    def register(self, url: str) -> None:
        """Register all schemas of the records. Blocks."""
        with SchemaRegistryClient({"url": url}) as client:
            for version in range(_NUM_SCHEMAS):
                fields = [{"name": "n", "type": "long"}, {"name": "text", "type": ["null", "string"]}]
                fields += [{"name": f"new{n}", "type": "int", "default": n} for n in range(version)]
                schema = {"type": "record", "name": "Order", "fields": fields}
                number = client.register_schema(f"{AVRO}-value", Schema(json.dumps(schema), "AVRO"))
                self._schemas.append((number, fastavro.parse_schema(schema)))

    async def run(self, is_over: asyncio.Event) -> None:
        """Send until `is_over`. Returns when every record is acknowledged or failed."""
        producer, owed = Producer({"bootstrap.servers": self._servers, **_OPTIONS}), 0.0
        while not is_over.is_set() or self._waiting:
            owed = 0.0 if is_over.is_set() else min(owed + self._rate * _TICK_S, _CATCH_UP_S * self._rate)
            while owed >= 1 and self._waiting < _MOST_WAITING:
                owed -= 1
                self._send_one(producer)
            producer.poll(0)
            await asyncio.sleep(_TICK_S)

    def _send_one(self, producer: Any) -> None:
        draw, topic = self._random.random(), self._random.choice((JSON, AVRO))
        key = None if draw < 0.02 else b"%d" % self._random.randrange(_NUM_KEYS)
        value, headers = self._record(topic, self._random.random())
        self._num_sent += 1
        self._waiting += 1
        partition = zlib.crc32(key or b"%d" % self._num_sent) % self._partitions
        try:
            producer.produce(topic, value, key, partition, headers=headers, on_delivery=self._ended)
        except (BufferError, KafkaException) as error:
            self._ended(error, None)

    def _record(self, topic: str, draw: float) -> tuple[bytes | None, list[tuple[str, bytes]]]:
        """The value of a record, and headers that say what it is owed."""
        text = " ".join(self._random.choices(_WORDS, k=self._random.randint(1, 12)))
        if draw < 0.05:
            return None, []
        if draw < 0.10:
            return self._written(topic, None), []
        if draw < 0.12:
            return self._written(topic, f"{text} {_POISON_TEXT}"), [(CODE, b"backend")]
        if draw < 0.14:
            head = b"{" if topic == JSON else struct.pack(">bI", 0, _UNKNOWN_ID)
            return head + text.encode(), [(CODE, b"invalid_request")]
        return self._written(topic, text), [(TEXT, text.encode())]

    def _written(self, topic: str, text: str | None) -> bytes:
        record = {"n": self._num_sent, "text": text}
        if topic == JSON:
            return json.dumps(record).encode()
        self._num_avro += 1
        number, schema = self._schemas[self._num_avro // _SCHEMA_EVERY % _NUM_SCHEMAS]
        file = BytesIO(struct.pack(">bI", 0, number))
        file.seek(0, 2)
        fastavro.schemaless_writer(file, schema, record)
        return file.getvalue()

    def _ended(self, error: object, message: Any) -> None:
        self._waiting -= 1
        if error is None:
            self.acknowledged.add((message.topic(), message.partition(), message.offset()))
