"""The plain producers send what they say: above all bombs, each alone in its batch."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.ops.chaos.load import raw_load
from penstock.ops.chaos.load.asked import MOST_UNPACKED_BYTES
from penstock.ops.chaos.load.raw_load import CODECS, RawLoad
from penstock.producer.aiokafka_internals.bounded_fetch import MAX_BATCH_BYTES

NUM_RECORDS = 60


class Topic:
    """Takes what producers send, and ends the load after `NUM_RECORDS`."""

    def __init__(self) -> None:
        self.is_over = asyncio.Event()
        self.sent: list[tuple[dict[str, Any], int]] = []  # the producer's options, and the bytes of the value

    def producer(self, options: dict[str, Any]) -> "Producer":
        return Producer(self, options)


class Producer:
    def __init__(self, topic: Topic, options: dict[str, Any]) -> None:
        self._topic, self._options = topic, options

    def produce(
        self, topic: str, value: bytes, key: bytes | None, headers: object, on_delivery: Callable[..., None]
    ) -> None:
        self._topic.sent.append((self._options, len(value)))
        on_delivery(None, None)
        if len(self._topic.sent) >= NUM_RECORDS:
            self._topic.is_over.set()

    def poll(self, timeout: float) -> None:
        pass


async def test_a_short_run_has_a_bomb_alone_in_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic()
    monkeypatch.setattr(raw_load, "Producer", topic.producer)
    load = RawLoad("unused", "model", "requests", 2000.0, seed=1)
    async with asyncio.timeout(300):
        await load.run(topic.is_over)
    (bomb,) = [options for options, num_bytes in topic.sent if num_bytes > MAX_BATCH_BYTES == MOST_UNPACKED_BYTES]
    assert (bomb["compression.type"], bomb["batch.num.messages"]) == ("gzip", 1)
    others = [options for options, num_bytes in topic.sent if num_bytes < 1000]
    assert len(others) == len(topic.sent) - 1 == len(load.acknowledged) - 1
    assert {options["compression.type"] for options in others} == {*CODECS}
    assert not any("batch.num.messages" in options for options in others)
