"""A program in place of a route: `python -m penstock.ops.bench.contestants.plain_pipeline <spec as JSON>`.

`faststream`: a batch subscriber around sentence-transformers, which sorts a batch by length and pads its parts. `http`:
one call a record to a server with the interface /v1/embeddings, which text-embeddings-inference has: one call after
another, as Debezium's transformations make them, or several at a time in the records' order, as Flink's `orderedWait`.
"""

import asyncio
import http.client
import json
import sys
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import orjson
import uvloop
from confluent_kafka import Consumer, Producer

from penstock.ops.bench.contestants.faststream import SUBSCRIBER, encoder

MAX_RECORDS = 256  # of a batch of FastStream: four times what a padded batch has, so that sorting pays
_AT_ONCE, _POLL_S = 64, 0.05


async def faststream(bootstrap_servers: str, topics: tuple[str, str], model: dict[str, Any]) -> None:
    """Enrich records until SIGTERM."""
    from faststream import AckPolicy, FastStream
    from faststream.kafka import KafkaBroker

    source, output = topics
    encode = encoder(**model)
    broker = KafkaBroker(bootstrap_servers, max_batch_size=8 << 20, logger=None)

    async def enrich(records: list[dict[str, Any]]) -> None:
        vectors = await asyncio.to_thread(encode, [record["text"] for record in records])
        values = [_enriched(record, vector) for record, vector in zip(records, vectors, strict=True)]
        await broker.publish_batch(*values, topic=output)

    broker.subscriber(
        source,
        batch=True,
        max_records=MAX_RECORDS,
        group_id=source,
        auto_offset_reset="earliest",
        ack_policy=AckPolicy.ACK,
        session_timeout_ms=SUBSCRIBER["session_timeout_ms"],
        heartbeat_interval_ms=SUBSCRIBER["heartbeat_interval_ms"],
    )(enrich)
    await FastStream(broker, logger=None).run()


def per_record(bootstrap_servers: str, topics: tuple[str, str], url: str, calls: int) -> None:
    """Enrich records until SIGTERM, with at most so many `calls` at a time."""
    source, output = topics
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": source, "auto.offset.reset": "earliest"})
    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 5})
    consumer.subscribe([source])
    server, pool = _Server(url), ThreadPoolExecutor(calls)
    waiting: deque[tuple[bytes | None, Future[bytes]]] = deque()
    while True:
        for message in consumer.consume(_AT_ONCE, _POLL_S if not waiting else 0.0):
            waiting.append((message.key(), pool.submit(server.enriched, message.value() or b"")))
        while waiting and (len(waiting) > calls + _AT_ONCE or waiting[0][1].done()):
            key, value = waiting.popleft()
            producer.produce(output, value.result(), key)
        producer.poll(0.0 if len(waiting) < calls else 0.001)


class _Server:
    """A connection for each thread."""

    def __init__(self, url: str) -> None:
        self._url, self._local = urlsplit(url), threading.local()

    def enriched(self, value: bytes) -> bytes:
        record, connection = orjson.loads(value), self._connection()
        try:
            vector = embed(connection, self._url.path, record["text"])
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            connection.close()  # the server ends connections that were idle; the next call opens another
            vector = embed(connection, self._url.path, record["text"])
        return _enriched(record, vector)

    def _connection(self) -> http.client.HTTPConnection:
        if not hasattr(self._local, "connection"):
            self._local.connection = http.client.HTTPConnection(self._url.hostname or "", self._url.port)
        connection: http.client.HTTPConnection = self._local.connection
        return connection


def embed(connection: http.client.HTTPConnection, path: str, text: str) -> list[float]:
    """The vector of one text. Raises OSError or ConnectionError if there is none."""
    body = orjson.dumps({"model": "model", "input": [text]})
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    found = answer.read()
    if answer.status != http.client.OK:
        raise ConnectionError(f"{answer.status}: {found[:500]!r}")
    vector: list[float] = orjson.loads(found)["data"][0]["embedding"]
    return vector


def _enriched(record: dict[str, Any], vector: Any) -> bytes:
    return orjson.dumps({**record, "vector": np.asarray(vector, np.float32)}, option=orjson.OPT_SERIALIZE_NUMPY)


if __name__ == "__main__":
    spec = json.loads(sys.argv[1])
    if "url" in spec:
        per_record(**spec)
    else:
        uvloop.run(faststream(**spec))
