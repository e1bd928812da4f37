"""Deadlines through a real broker: requests that would be late are rejected at once; misses are counted by cause."""

import asyncio
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.ops.kafka import KafkaBroker
from penstock.producer import Client, Overloaded, PenstockError

BATCH_S = 0.2  # how long every batch takes


def ids(number: int) -> list[int]:
    """Ids of the length with which so slow an engine is calibrated: its one timing is then a good prediction."""
    return [1, number] * 4


def client_of(broker: KafkaBroker, model: str) -> Client:
    """A client that sends one sequence in a record."""
    return Client(bootstrap_servers=broker.bootstrap_servers, model=model, sequences_per_record=1, batch_calls=False)


async def metric(worker: Any, line: str) -> float:
    """The value of one of the worker's metrics; 0 if it is absent."""
    port = (await worker.event("metrics_served"))["port"]
    with await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}/metrics") as page:
        lines = page.read().decode().splitlines()
    return sum(float(found.rpartition(" ")[2]) for found in lines if found.startswith(line + " "))


def code(answer: dict[str, Any]) -> str:
    return "ok" if answer["ok"] else str(answer["error"]["code"])


async def outcome(call: Awaitable[Any]) -> type[PenstockError] | None:
    try:
        await call
    except PenstockError as error:
        return type(error)
    return None


async def test_requests_that_would_be_late_are_rejected_and_admitted_ones_are_in_time(
    kafka: KafkaBroker, unique: Callable[[str], str], start_worker: Callable[..., Any]
) -> None:
    """40 requests of 0.2 s each, one at a time, all with two seconds: there is time for nine or ten."""
    model = unique("deadlines")
    worker = start_worker(
        kafka, served_name=model, echo_batch_s=BATCH_S, max_batch_sequences=1, lanes=1, metrics_port=0
    )
    async with client_of(kafka, model) as client:
        await worker.ready()
        await asyncio.gather(
            *[client.embed(ids=[ids(number)]) for number in range(100, 105)]
        )  # topics and leaders known
        asked = [client.embed(ids=[ids(number)], timeout_s=2.0) for number in range(1, 41)]
        outcomes = await asyncio.gather(*map(outcome, asked))
    answered, refused = outcomes.count(None), outcomes.count(Overloaded)
    assert 5 <= answered <= 10
    assert answered + refused == 40
    codes = {event["code"] for event in worker.events("request_refused")}
    assert codes == {"overloaded"}
    assert await metric(worker, "penstock_overload_refusals_total") >= refused
    assert await metric(worker, 'penstock_deadline_misses_total{cause="predicted_wrong"}') == 0
    assert len(worker.events("batch_done")) == 5 + answered  # rejected requests were not run


@pytest.mark.parametrize(("slo", "codes"), [({}, {"ok"}), ({"slo_ms": 1000}, {"ok", "overloaded"})])
async def test_a_plain_request_without_a_deadline_is_refused_only_if_the_worker_has_an_objective(
    kafka: KafkaBroker,
    unique: Callable[[str], str],
    start_worker: Callable[..., Any],
    post: Callable[..., Any],
    slo: dict[str, int],
    codes: set[str],
) -> None:
    model = unique("deadlines")
    worker = start_worker(kafka, served_name=model, echo_batch_s=BATCH_S, max_batch_sequences=1, lanes=1, **slo)
    await worker.ready()
    answers = await post(kafka, model, [(ids(number), []) for number in range(1, 16)])
    assert set(map(code, answers)) == codes


async def test_misses_are_counted_by_cause(
    kafka: KafkaBroker, unique: Callable[[str], str], start_worker: Callable[..., Any], post: Callable[..., Any]
) -> None:
    """In a worker that admits everything."""
    model = unique("deadlines")
    settings = {"max_batch_sequences": 1, "lanes": 1, "admission": "accept", "metrics_port": 0}
    worker = start_worker(kafka, served_name=model, echo_batch_s=4 * BATCH_S, **settings)
    await worker.ready()

    async def codes(*numbers: int, timeout_s: float) -> list[str]:
        answers = await post(kafka, model, [(ids(number), []) for number in numbers], timeout_s=timeout_s)
        return sorted(map(code, answers))

    assert await codes(1, timeout_s=60.0) == ["ok"]
    assert await codes(2, timeout_s=-1.0) == ["expired"]
    assert await codes(3, timeout_s=2 * BATCH_S) == ["ok"]  # it ran, and its answer was late
    assert await codes(4, 5, timeout_s=2 * BATCH_S) == ["expired", "ok"]  # one ran, the other expired in the queue
    for cause, count in {"arrived_late": 1, "queued": 1, "predicted_wrong": 2}.items():
        assert await metric(worker, f'penstock_deadline_misses_total{{cause="{cause}"}}') == count
    assert len(worker.events("batch_done")) == 3
    told = await worker.event("worker_load")
    assert {"queued_sequences", "queued_tokens", "backlog_s", "overloaded", "missed"} <= told.keys()
