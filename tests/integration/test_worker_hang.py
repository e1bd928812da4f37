"""An engine that hangs ends its worker, which leaves the requests to others."""

import asyncio
import signal

from penstock.ops.kafka import KafkaBroker
from tests.integration.conftest import Post, StartWorker, Unique

HANG_S, DRAIN_S = 3.0, 1.0


async def test_a_worker_whose_engine_hangs_exits_and_another_answers(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, post: Post
) -> None:
    model = unique("hang")
    worker = start_worker(kafka, served_name=model, echo_hangs=1, echo_hang_s=HANG_S)
    await worker.ready()
    asking = asyncio.create_task(post(kafka, model, [([1, 2, 3], [])]))
    await worker.event("engine_unhealthy")
    assert await worker.exit_code() == 1
    assert worker.events("lane_hung")
    start_worker(kafka, served_name=model)
    (answer,) = await asking
    assert "error" not in answer


async def test_sigterm_ends_a_worker_whose_engine_hangs(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, post: Post
) -> None:
    model = unique("hang")
    worker = start_worker(kafka, served_name=model, echo_hangs=1, drain_s=DRAIN_S, max_batch_sequences=1, lanes=1)
    await worker.ready()
    asking = asyncio.create_task(post(kafka, model, [([1, 2, number], []) for number in range(4)]))
    await worker.event("worker_load")  # a batch runs, and others wait for it
    await worker.stop()
    assert worker.events("drain_incomplete")
    asking.cancel()


async def test_a_second_sigterm_ends_a_worker_at_once(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, post: Post
) -> None:
    """Its first one waits for a batch that never ends."""
    model = unique("hang")
    worker = start_worker(kafka, served_name=model, echo_hangs=1, drain_s=120.0, max_batch_sequences=1, lanes=1)
    await worker.ready()
    asking = asyncio.create_task(post(kafka, model, [([1, 2, number], []) for number in range(4)]))
    await worker.event("worker_load")  # a batch runs, and others wait for it
    worker.process.terminate()
    await worker.event("stopping")
    worker.process.terminate()
    assert await worker.exit_code() == -signal.SIGTERM
    assert not worker.events("drained")
    asking.cancel()
