"""A bare aiokafka echo: the cost of Kafka and Python alone, and the baseline of the null engine.

client → request topic → worker → reply topic → client, 200-byte records, a fixed number in flight. The client only
counts: no ids, no futures. The worker returns each record with `send`, or (`batched`) whole batches with
`create_batch`, which is the fastest way of aiokafka. It does not use the load generator, which does more for a request.
`python -m penstock.ops.bench.contestants.echo <spec as JSON>` is one of the two processes; `bare_echo` starts both.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from penstock.ops.bench.common.processes import ProcessFailed, cpu_s, run_once, serving
from penstock.ops.kafka import KafkaBroker
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.transport.connection import ensure_topics
from penstock.worker.garbage_collection import calm_garbage_collection

WAYS: tuple[Literal["send"], Literal["batched"]] = ("send", "batched")
_VALUE = bytes(200)
_IN_FLIGHT, _WARM_UP = 5000, 6000
_PRODUCER = {"acks": "all", "enable_idempotence": True, "linger_ms": 2}


@contextmanager
def bare_echo(
    broker: KafkaBroker, way: Literal["send", "batched"], folder: Path
) -> Iterator[Callable[[int], dict[str, Any]]]:
    """The worker, within; yields a function that measures a number of requests, after a warm-up: see `drive`."""
    common = {"bootstrap_servers": broker.bootstrap_servers, "topic": f"echo.{way}"}
    log = folder / f"echo-{way}.log"
    spec = {**common, "role": "worker", "batched": way == "batched"}
    with serving("contestants.echo", spec, log) as worker:

        def measure(num_requests: int) -> dict[str, Any]:
            if broker.pid is None:
                raise ProcessFailed("The broker ended.")
            load = {"num_requests": num_requests, "warm_up": min(_WARM_UP, num_requests), "in_flight": _IN_FLIGHT}
            watch = {"worker": worker, "broker": broker.pid}
            return run_once("contestants.echo", {**common, **load, "watch": watch, "role": "client"}, log)

        yield measure


async def work(bootstrap_servers: str, topic: str, batched: bool) -> None:
    """Echo until SIGTERM."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    await ensure_topics(KafkaCluster(bootstrap_servers), [topic, f"{topic}.replies"], 1)
    consumer = await _consumer_at_end(bootstrap_servers, topic)
    batching = {"max_batch_size": 512 * 1024, "linger_ms": 0} if batched else {}
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap_servers, **{**_PRODUCER, **batching})
    await producer.start()
    while not stopping.is_set():
        for records in (await consumer.getmany(timeout_ms=200)).values():
            send = _send_batches if batched else _send_each
            await send(producer, f"{topic}.replies", records)
    await consumer.stop()
    await producer.stop()


async def _send_each(producer: AIOKafkaProducer, topic: str, records: list[Any]) -> None:
    for record in records:
        await producer.send(topic, record.value)


async def _send_batches(producer: AIOKafkaProducer, topic: str, records: list[Any]) -> None:
    batch = producer.create_batch()
    for record in records:
        if batch.append(timestamp=None, key=None, value=record.value) is None:
            await producer.send_batch(batch, topic, partition=0)
            batch = producer.create_batch()
            batch.append(timestamp=None, key=None, value=record.value)
    await producer.send_batch(batch, topic, partition=0)


async def drive(
    bootstrap_servers: str, topic: str, num_requests: int, warm_up: int, in_flight: int, watch: Mapping[str, int]
) -> dict[str, Any]:
    """Send and count. Returns the rate and the processor time a request of the measured part."""
    await ensure_topics(KafkaCluster(bootstrap_servers), [topic, f"{topic}.replies"], 1)
    consumer = await _consumer_at_end(bootstrap_servers, f"{topic}.replies")
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap_servers, **_PRODUCER)
    await producer.start()
    await _round_trips(producer, consumer, topic, warm_up, in_flight)
    calm_garbage_collection()
    watched = {"client": os.getpid(), **watch}
    before = {name: sum(cpu_s(pid)) for name, pid in watched.items()}
    started = time.perf_counter()
    await _round_trips(producer, consumer, topic, num_requests, in_flight)
    wall_s = time.perf_counter() - started
    cpu_us = {name: (sum(cpu_s(pid)) - before[name]) / num_requests * 1e6 for name, pid in watched.items()}
    await consumer.stop()
    await producer.stop()
    return {"requests_per_s": num_requests / wall_s, "cpu_us": cpu_us}


async def _round_trips(
    producer: AIOKafkaProducer, consumer: AIOKafkaConsumer, topic: str, count: int, in_flight: int
) -> None:
    room = asyncio.Semaphore(in_flight)

    async def send() -> None:
        for _ in range(count):
            await room.acquire()
            await producer.send(topic, _VALUE)

    sending = asyncio.create_task(send())
    received = 0
    while received < count:
        for records in (await consumer.getmany(timeout_ms=1000)).values():
            received += len(records)
            for _ in records:
                room.release()
    await sending


async def _consumer_at_end(bootstrap_servers: str, topic: str) -> AIOKafkaConsumer:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap_servers, enable_auto_commit=False)
    await consumer.start()
    source = TopicPartition(topic, 0)
    consumer.assign([source])
    await consumer.seek_to_end(source)
    await consumer.position(source)
    return consumer


def main() -> None:
    spec = json.loads(sys.argv[1])
    role = spec.pop("role")
    if role == "worker":
        uvloop.run(work(**spec))
    elif role == "client":
        print(json.dumps(uvloop.run(drive(**spec))))
    else:
        raise ValueError(f"No such role: {role!r}")


if __name__ == "__main__":
    main()
