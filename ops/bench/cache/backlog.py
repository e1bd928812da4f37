"""A backlog of requests in a topic of a real broker, and how fast a worker answers it.

The backlog is there before the worker starts, so that no client takes processor time from it.
"""

import asyncio
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from penstock.ops.bench.common.processes import ProcessFailed, cpu_s
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.transport.connection import ensure_topics
from penstock.producer.wire.codec import decode_reply, encode_request
from penstock.producer.wire.headers import request_headers
from penstock.producer.wire.messages import Reply, Request, Tokens
from penstock.producer.wire.topics import request_topic

NUM_PARTITIONS = 4
_LOOK_S = 0.02
_STARTED = 0.05  # share of the replies after which the measurement begins: the worker has its partitions
_TIMEOUT_S = 120.0

Ids = Sequence[npt.NDArray[np.uint32]]


@dataclass(frozen=True, slots=True)
class Pass:
    """One backlog, from the first replies on."""

    num_sequences: int
    num_cached: int
    wall_s: float
    cpu_s: float  # of all threads of the worker


async def write_backlog(servers: str, model: str, replies: str, ids: Ids, per_record: int) -> int:
    """Write requests of `per_record` sequences, divided evenly over the partitions; returns their number."""
    topic = request_topic(model)
    await ensure_topics(KafkaCluster(servers), [topic], NUM_PARTITIONS)
    await ensure_topics(KafkaCluster(servers), [replies], 1)
    producer = AIOKafkaProducer(bootstrap_servers=servers, acks="all", linger_ms=5)
    await producer.start()
    starts = range(0, len(ids), per_record)
    for number, start in enumerate(starts):
        rows = ids[start : start + per_record]
        tokens = Tokens(np.concatenate(rows).astype(np.uint32), tuple(map(len, rows)))
        value = encode_request(Request(model, "embed", tokens=tokens))
        headers = request_headers(struct.pack("<Q", number), replies, 0, None)
        await producer.send(topic, value, headers=headers, partition=number % NUM_PARTITIONS)
    await producer.stop()  # sends what waits
    return len(starts)


async def answered(servers: str, replies: str, count: int, pid: int) -> Pass:
    """Wait until a worker has sent `count` replies. Its rate and processor time, from the first ones on.

    Raises ProcessFailed if that takes longer than two minutes.
    """
    source = TopicPartition(replies, 0)
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False)
    await consumer.start()
    consumer.assign([source])
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            first = await _until(consumer, source, int(_STARTED * count), pid)
            last = await _until(consumer, source, count, pid)
            sizes = await _read(consumer, source, count)
    except TimeoutError as error:
        raise ProcessFailed(f"The worker did not answer {count} requests within {_TIMEOUT_S:g} s.") from error
    finally:
        await consumer.stop()
    measured = sizes[first[0] : last[0]]
    num_sequences, num_cached = (sum(column) for column in zip(*measured, strict=True))
    return Pass(num_sequences, num_cached, last[1] - first[1], last[2] - first[2])


async def _until(consumer: AIOKafkaConsumer, source: TopicPartition, count: int, pid: int) -> tuple[int, float, float]:
    """Wait for `count` replies. Returns their number, the time and the worker's processor seconds."""
    while (number := (await consumer.end_offsets([source]))[source]) < count:  # noqa: ASYNC110 — the broker sends no event
        await asyncio.sleep(_LOOK_S)
    return number, time.perf_counter(), sum(cpu_s(pid))


async def _read(consumer: AIOKafkaConsumer, source: TopicPartition, count: int) -> list[tuple[int, int]]:
    """Each reply's number of sequences, and how many came from the cache."""
    consumer.seek(source, 0)
    found: list[tuple[int, int]] = []
    while len(found) < count:
        for records in (await consumer.getmany(timeout_ms=1000)).values():
            found += [_sizes(record.value) for record in records]
    return found


def _sizes(value: bytes) -> tuple[int, int]:
    reply = decode_reply(value)
    if not isinstance(reply, Reply) or reply.vectors is None:
        raise ProcessFailed(f"The worker answered with {reply!r}"[:500])
    return len(reply.vectors), reply.cached
