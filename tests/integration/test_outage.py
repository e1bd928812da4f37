"""Without a broker, at the start or in mid-run, workers and clients wait, log it, resume, and use no processor."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.ops.kafka import KafkaBroker
from penstock.producer import Client, Expired, ShuttingDown
from tests.integration.conftest import StartWorker

MODEL = "m"
MOST_BUSY = 0.25  # share of one processor while waiting for the broker


@pytest.fixture
def broker() -> Iterator[KafkaBroker]:
    """A broker for one test, not started."""
    own = KafkaBroker(num_partitions=4)
    try:
        yield own
    finally:
        own.close()


@asynccontextmanager
async def measured(worker: Any) -> AsyncIterator[None]:
    """Assert that the worker is nearly idle inside."""
    cpu_s, started = worker.cpu_s, time.monotonic()
    yield
    busy = (worker.cpu_s - cpu_s) / (time.monotonic() - started)
    assert busy < MOST_BUSY, f"The worker used {busy:.0%} of a processor while the broker was away."


async def test_worker_and_client_started_before_the_broker_wait_for_it(
    broker: KafkaBroker, start_worker: StartWorker
) -> None:
    worker = start_worker(broker, served_name=MODEL)
    client = Client(bootstrap_servers=broker.bootstrap_servers, model=MODEL, connect_timeout_s=170)
    connecting = asyncio.create_task(client.start())
    await worker.event("kafka_unreachable")
    async with measured(worker):
        await asyncio.to_thread(broker.start)
    try:
        await connecting
        vectors = await client.embed(ids=[[1, 2, 3]], timeout_s=300)
        assert vectors.tolist() == [[3, 1, 3, 6]]
    finally:
        await client.close()


async def test_a_broker_killed_in_mid_run_costs_no_answer(broker: KafkaBroker, start_worker: StartWorker) -> None:
    await asyncio.to_thread(broker.start)
    worker = start_worker(broker, served_name=MODEL)
    async with Client(bootstrap_servers=broker.bootstrap_servers, model=MODEL, timeout_s=300) as client:
        await worker.ready()
        calls = [asyncio.create_task(client.embed(ids=[[n + 1]])) for n in range(1000)]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.to_thread(broker.kill)
        during = [asyncio.create_task(client.embed(ids=[[n + 1]])) for n in range(1000, 1200)]
        async with measured(worker):
            with pytest.raises(Expired):
                await client.embed(ids=[[1]], timeout_s=4.0)  # a deadline holds without a broker, too
            await asyncio.to_thread(broker.start)
        after = [asyncio.create_task(client.embed(ids=[[n + 1]])) for n in range(1200, 1400)]
        vectors = await asyncio.gather(*calls, *during, *after)
    assert [vector[0, 1] for vector in vectors] == list(range(1, 1401))
    await worker.stop()
    # The wait is logged, but not again and again.
    assert len(worker.events()) < 200 + len(worker.events("batch_done"))


async def test_idle_workers_and_clients_log_a_broker_lost_in_mid_run(
    broker: KafkaBroker, start_worker: StartWorker
) -> None:
    await asyncio.to_thread(broker.start)
    worker = start_worker(broker, served_name=MODEL)
    with capture_logs() as told:
        async with Client(bootstrap_servers=broker.bootstrap_servers, model=MODEL) as client:
            await worker.ready()
            await client.embed(ids=[[1]])
            await asyncio.to_thread(broker.kill)
            await worker.event("kafka_unreachable")
            await asyncio.to_thread(broker.start)
            await worker.event("kafka_back")
            await client.embed(ids=[[2]])
            await asyncio.wait_for(until_told(told, "kafka_back"), 60)
    # Once an outage. A machine that stands still is one more.
    for events in (told, worker.events()):
        names = [event["event"] for event in events if event["event"] in ("kafka_unreachable", "kafka_back")]
        assert names == ["kafka_unreachable", "kafka_back"] * (len(names) // 2)
        assert 1 <= len(names) // 2 <= 3


async def until_told(told: list[MutableMapping[str, Any]], name: str) -> None:
    while all(event["event"] != name for event in told):  # noqa: ASYNC110  # a log has no event to wait for
        await asyncio.sleep(0.1)


async def test_closing_a_client_that_waits_for_its_broker_ends_at_once(broker: KafkaBroker) -> None:
    connecting = asyncio.create_task(Client(bootstrap_servers=broker.bootstrap_servers, model=MODEL).__aenter__())
    await asyncio.sleep(0)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting


async def test_closing_waits_briefly_for_a_broker_that_takes_no_cancellation(broker: KafkaBroker) -> None:
    """`close` gives up what is in the outbox then: the request ends at its deadline."""
    await asyncio.to_thread(broker.start)
    async with Client(bootstrap_servers=broker.bootstrap_servers, model=MODEL) as client:
        sent = asyncio.create_task(client.generate(ids=[[1]]))
        await asyncio.sleep(0)  # the call is queued, and then put
        await asyncio.sleep(0)
        await client._exchange._outbox.flush()
        await asyncio.to_thread(broker.kill)
        started = time.monotonic()
    took_s = time.monotonic() - started
    with pytest.raises(ShuttingDown):
        await sent
    assert took_s < 20, took_s  # the call itself has two minutes
