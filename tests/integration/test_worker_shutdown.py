"""SIGTERM ends a worker within `drain_s` and 5 s, whatever the broker does meanwhile."""

import asyncio
import http.client
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.ops.kafka import KafkaBroker
from penstock.producer import Client
from penstock.producer.wire.messages import Request, join_tokens
from tests.integration.conftest import StartWorker, Unique

DRAIN_S, LEAVE_S = 1.0, 5.0
EXIT_S = 30.0  # for a machine that stands still. A frozen broker would hold each step up for aiokafka's 40 s

STOOD_STILL = "the event loop has not answered for 1 s"  # as the machine has


@pytest.fixture
def broker() -> Iterator[KafkaBroker]:
    """A broker for one test."""
    own = KafkaBroker(num_partitions=4)
    own.start()
    try:
        yield own
    finally:
        own.kill()
        own.close()


def freeze(broker: KafkaBroker) -> None:
    """Suspend the broker's process: connections stay open, and nothing is answered."""
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGSTOP)


@pytest.mark.parametrize("lose", [freeze, KafkaBroker.kill], ids=["frozen", "killed"])
async def test_sigterm_in_mid_run_ends_the_worker_within_the_bound(
    broker: KafkaBroker, start_worker: StartWorker, lose: Callable[[KafkaBroker], None]
) -> None:
    slow = {"echo_batch_s": 0.2, "max_batch_sequences": 1, "lanes": 1}  # too slow for 100 sequences in DRAIN_S
    worker = start_worker(broker, served_name="m", drain_s=DRAIN_S, **slow)
    await worker.ready()
    async with Client(bootstrap_servers=broker.bootstrap_servers, model="m") as client:
        calls = [
            asyncio.create_task(client.request(Request("m", "embed", join_tokens([[n + 1, 2]])))) for n in range(100)
        ]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.gather(*calls, return_exceptions=True)
    await asyncio.to_thread(lose, broker)
    worker.process.terminate()
    started = time.monotonic()
    assert await worker.exit_code() == 0
    assert time.monotonic() - started < DRAIN_S + LEAVE_S + EXIT_S
    assert [event["event"] for event in worker.events() if event["event"] in ("drain_incomplete", "stopped")] == [
        "drain_incomplete",
        "stopped",
    ]


async def test_a_machine_that_stands_still_while_a_worker_ends_is_no_failure(
    kafka: KafkaBroker, start_worker: StartWorker, unique: Unique
) -> None:
    worker = start_worker(kafka, model="null", served_name=unique("m"))
    await worker.ready()
    worker.process.terminate()
    await worker.event("stopped")
    worker.process.send_signal(signal.SIGSTOP)  # a part of a second before its end
    await asyncio.sleep(4.5)
    worker.process.send_signal(signal.SIGCONT)
    assert await worker.exit_code() == 0


async def test_a_worker_is_ready_from_its_join_to_its_drain(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, tmp_path: Path
) -> None:
    model, gate = unique("m"), tmp_path / "gate"
    slow = {"echo_gate": gate, "max_batch_sequences": 1, "lanes": 1}
    worker = start_worker(kafka, served_name=model, drain_s=300.0, metrics_port=0, **slow)
    await worker.ready()
    [served] = [event for event in worker.events() if event["event"] == "metrics_served"]

    def ready() -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", served["port"], timeout=300)
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        return answer.status, json.load(answer)

    async with asyncio.timeout(300):  # its partitions are assigned, and their offsets not yet known
        while (answer := await asyncio.to_thread(ready))[0] != 200:
            assert answer[1]["reason"] in ("its partitions are being assigned", STOOD_STILL)
    assert answer == (200, {"ready": True})
    async with Client(bootstrap_servers=kafka.bootstrap_servers, model=model, timeout_s=300) as client:
        calls = [asyncio.create_task(client.request(Request(model, "embed", join_tokens([[n, 2]])))) for n in range(4)]
        await worker.event("worker_load")  # a batch runs, and others wait for it
        worker.process.terminate()
        async with asyncio.timeout(300):
            while (answer := await asyncio.to_thread(ready))[0] == 200 or answer[1]["reason"] == STOOD_STILL:
                pass
        assert answer == (503, {"ready": False, "reason": "draining"})
        gate.touch()
        await asyncio.gather(*calls)
    assert await worker.exit_code() == 0
