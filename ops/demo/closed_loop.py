"""A closed loop of requests: each of `in_flight` callers sends its next message after the answer to its last."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.producer import Client
from penstock.producer.wire.messages import Classification, Reply, Request


@dataclass(frozen=True, slots=True)
class Pass:
    """Results of sending every message once, one message per request."""

    in_flight: int  # callers; the load under which the latencies were measured
    wall_s: float  # from the first send to the last answer
    latencies_s: npt.NDArray[np.float64]  # [n] from call to answer
    answers: tuple[Classification, ...]  # [n] in the order of the messages
    num_cached: int  # answers that came from the cache

    @property
    def messages_per_s(self) -> float:
        return len(self.answers) / self.wall_s

    def percentile_ms(self, percent: float) -> float:
        return float(np.percentile(self.latencies_s, percent)) * 1e3


async def send_all(
    client: Client, model: str, texts: Sequence[str], in_flight: int, on_answer: Callable[[float], None]
) -> Pass:
    """Send each text as one request. `on_answer` is called with each latency in seconds.

    Raises PenstockError of the first request that fails, and cancels the others.
    """
    replies: list[Reply | None] = [None] * len(texts)
    latencies_s = np.zeros(len(texts))
    waiting = iter(enumerate(texts))

    async def call_in_turn() -> None:
        for index, text in waiting:
            sent = time.perf_counter()
            replies[index] = await client.request(Request(model, "classify", text=(text,)))
            latencies_s[index] = time.perf_counter() - sent
            on_answer(latencies_s[index])

    start = time.perf_counter()
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(in_flight):
                group.create_task(call_in_turn())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    wall_s = time.perf_counter() - start
    answered = [reply for reply in replies if reply is not None]
    answers = tuple([reply.classes[0] for reply in answered if reply.classes])
    if len(answers) != len(texts):
        raise RuntimeError(f"{len(texts)} requests succeeded with {len(answers)} answers. This is a bug.")
    return Pass(in_flight, wall_s, latencies_s, answers, sum(reply.cached for reply in answered))
