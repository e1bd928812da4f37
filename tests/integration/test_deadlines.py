"""Deadlines through a real broker: requests that would be late are rejected at once."""

import asyncio
import urllib.request
from collections.abc import Awaitable
from typing import Any, NamedTuple

from penstock.ops.kafka import KafkaBroker
from penstock.producer import Client, Overloaded, PenstockError
from tests.integration.conftest import StartWorker, Unique

BATCH_S = 0.2  # how long every batch takes


def ids(number: int) -> list[int]:
    """Ids of the length with which so slow an engine is calibrated: its one timing is then a good prediction."""
    return [1, number] * 4


async def metric(worker: Any, line: str) -> float:
    """The value of one of the worker's metrics; 0 if it is absent."""
    port = (await worker.event("metrics_served"))["port"]
    with await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}/metrics") as page:
        lines = page.read().decode().splitlines()
    return sum(float(found.rpartition(" ")[2]) for found in lines if found.startswith(line + " "))


class Counts(NamedTuple):
    """The counts of a worker so far."""

    batches: int
    refusals: int
    overloaded: float
    predicted_wrong: float

    @classmethod
    async def of(cls, worker: Any) -> "Counts":
        return cls(
            len(worker.events("batch_done")),
            len(worker.events("request_refused")),
            await metric(worker, "penstock_overload_refusals_total"),
            await metric(worker, 'penstock_deadline_misses_total{cause="predicted_wrong"}'),
        )


async def outcome(call: Awaitable[Any]) -> type[PenstockError] | None:
    try:
        await call
    except PenstockError as error:
        return type(error)
    return None


async def test_requests_that_would_be_late_are_rejected_and_admitted_ones_are_in_time(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker
) -> None:
    """40 requests of 0.2 s each, one at a time, all with two seconds: there is time for nine or ten.

    A machine that stands still makes them late, which says nothing of the rejections: then 40 more are sent.
    """
    model = unique("deadlines")
    worker = start_worker(
        kafka, served_name=model, echo_batch_s=BATCH_S, max_batch_sequences=1, lanes=1, metrics_port=0
    )
    one_a_record: dict[str, Any] = {"sequences_per_record": 1, "batch_calls": False}
    async with Client(bootstrap_servers=kafka.bootstrap_servers, model=model, **one_a_record) as client:
        await worker.ready()
        await asyncio.gather(
            *[client.embed(ids=[ids(number)]) for number in range(100, 105)]
        )  # topics and leaders known
        for attempt in range(1, 6):
            before = await Counts.of(worker)
            asked = [client.embed(ids=[ids(200 * attempt + number)], timeout_s=2.0) for number in range(40)]
            outcomes = await asyncio.gather(*map(outcome, asked))
            async with asyncio.timeout(300):
                while await metric(worker, "penstock_unfinished_records"):  # noqa: ASYNC110 — there is no event
                    await asyncio.sleep(0.1)
            after = await Counts.of(worker)
            answered, refused = outcomes.count(None), outcomes.count(Overloaded)
            if answered >= 5 and answered + refused == 40 and after.predicted_wrong == before.predicted_wrong:
                break
    assert answered + refused == 40
    assert 5 <= answered <= 10
    codes = {event["code"] for event in worker.events("request_refused")[before.refusals :]}
    assert codes == {"overloaded"}
    assert after.overloaded - before.overloaded >= refused
    assert after.predicted_wrong == before.predicted_wrong
    assert after.batches - before.batches == answered  # rejected requests were not run
