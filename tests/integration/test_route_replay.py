"""`penstock replay --route`: the history of a route is enriched again, beside live records."""

import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from penstock.ops.kafka import KafkaBroker
from tests.engine.helpers import save_sentence_transformer
from tests.integration.conftest import CountRecords, StartWorker, Unique, WorkerProcess, reader_of
from tests.integration.test_routes import TIME_MS, WORDS, Sent, make_topic, read, send
from tests.ops.command_line import penstock


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("replayed")
    save_sentence_transformer(directory, WORDS)
    return directory / "model"


class Route:
    """A route that accepts replays, and its worker."""

    def __init__(
        self, broker: KafkaBroker, unique: Unique, start: StartWorker, model: Path, delivery: str = "at_least_once"
    ) -> None:
        self.broker, self._start = broker, start
        self.source, self.output, self.group = unique("orders"), unique("enriched"), unique("group")
        self._settings: dict[str, Any] = {
            "model": model,
            "served_name": "routed",
            "delivery": delivery,
            "group_id": self.group,
            "input_topic": self.source,
            "output_topic": self.output,
            "text": "text",
            "accept_replays": True,
            "max_age_ms": 7 * 86_400_000,
        }

    async def begin(self, records: Sequence[Sent], partitions: int = 4) -> WorkerProcess:
        await make_topic(self.broker, self.source, partitions)
        await send(self.broker, self.source, records)
        return self.start()

    def start(self, **settings: Any) -> WorkerProcess:
        return self._start(self.broker, **self._settings, **settings)

    async def replay(self, *args: str) -> tuple[int, str]:
        servers = ["--bootstrap-servers", self.broker.bootstrap_servers]
        command = ["replay", "--route", self.source, "--group-id", self.group, *args, *servers]
        return await asyncio.to_thread(penstock, *command)


def order(key: bytes | None, number: int) -> Sent:
    return Sent(key, b'{"n": %d, "text": "w%d"}' % (number, number % 20), [("mine", b"1")])


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_the_newest_record_of_each_key_is_enriched_again_and_comes_out_as_it_did(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, model: Path, delivery: str
) -> None:
    route = Route(kafka, unique, start_worker, model, delivery)
    older = [order(b"%d" % number, number) for number in range(10)]
    newer = [order(b"%d" % number, 100 + number) for number in range(5)]
    keyless = [order(None, 200 + number) for number in range(3)]
    worker = await route.begin([*older, *newer, *keyless, Sent(b"9", None)])
    isolation = {"isolation_level": "read_committed"}
    first = await read(worker, kafka, route.output, 19, **isolation)

    code, text = await route.replay()
    assert code == 0, text
    assert "Would send 13 records" in text
    code, text = await route.replay("--execute", "--json")
    assert code == 0, text
    assert '{"topic": "' + route.source + '", "executed": true, "records": 19, "wanted": 13, "done": 13' in text
    found = await read(worker, kafka, route.output, 19 + 13, **isolation)
    again = [
        record for record in found if (record.partition, record.offset) not in {(r.partition, r.offset) for r in first}
    ]
    before = {dict(record.headers)["penstock-source"]: record for record in first}
    for record in again:
        one = before[dict(record.headers)["penstock-source"]]
        assert (record.key, record.value, record.timestamp) == (one.key, one.value, TIME_MS)
        assert [name for name, _ in record.headers] == [name for name, _ in one.headers]
    numbers = [None if record.value is None else json.loads(record.value)["n"] for record in again]
    assert sorted(numbers, key=str) == sorted([*range(100, 105), *range(5, 9), 200, 201, 202, None], key=str)
    await worker.stop()


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_no_key_ends_with_an_older_result_beside_live_records(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, model: Path, delivery: str
) -> None:
    """Some keys change once, some all the time, while the history is enriched again; and the worker is killed."""
    route = Route(kafka, unique, start_worker, model, delivery)
    history = [order(b"%d" % (number % 400), number) for number in range(1200)]
    worker = await route.begin(history, partitions=2)
    await read(worker, kafka, route.output, 1200, isolation_level="read_committed")
    live: list[Sent] = []
    replaying = asyncio.create_task(route.replay("--execute"))
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        while not replaying.done():
            for number in (len(live) % 400, 7):
                live.append(order(b"%d" % number, 10_000 + len(live)))
                await producer.send_and_wait(route.source, live[-1].value, live[-1].key)
            if len(live) == 40:
                worker.process.kill()
                worker = route.start()
            await asyncio.sleep(0.02)
    code, text = await replaying
    assert code == 0, text
    newest = {one.key: json.loads(one.value or b"")["n"] for one in [*history, *live]}
    assert await newest_of(worker, kafka, route.output, newest) == newest
    await worker.stop()


async def newest_of(
    worker: WorkerProcess, broker: KafkaBroker, topic: str, expected: dict[bytes | None, int]
) -> dict[bytes | None, int]:
    """The number in the last record of each key, once all that was expected has come and the worker has no more."""
    last: dict[bytes | None, int] = {}
    quiet = 0
    async with reader_of(broker, topic, isolation_level="read_committed") as reader, asyncio.timeout(300):
        while last != expected or quiet < 3:
            polled = await reader.getmany(timeout_ms=500)
            last |= {one.key: json.loads(one.value)["n"] for records in polled.values() for one in records}
            quiet = 0 if polled else quiet + 1
            if quiet == 20:
                break
            assert worker.process.poll() is None, worker.tail()
    return last


async def test_an_interrupted_replay_is_resumed_and_sends_nothing_twice(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, model: Path, count_records: CountRecords
) -> None:
    route = Route(kafka, unique, start_worker, model)
    worker = await route.begin([order(b"%d" % number, number) for number in range(1500)], partitions=1)
    await read(worker, kafka, route.output, 1500)
    await worker.stop()  # nothing is finished meanwhile, so that the command has to wait
    servers = ["--bootstrap-servers", kafka.bootstrap_servers]
    arguments = ["replay", "--route", route.source, "--group-id", route.group, "--execute", *servers]
    main = "from penstock.ops.cli.main import main; main()"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", main, *arguments)
    target = f"{route.source}.replay"
    async with reader_of(kafka, target) as reader, asyncio.timeout(300):
        await reader.getone()
    process.send_signal(signal.SIGINT)
    assert await process.wait() == 130
    await send(kafka, route.source, [order(b"3", 5000)])

    worker = route.start()
    code, text = await route.replay("--execute", "--resume")
    assert code == 0, text
    assert await count_records(kafka, target) == 1501  # the new one of a key that was sent before
    for execute in ((), ("--execute",)):
        code, text = await route.replay("--resume", *execute)
        assert (code, "Nothing is left: the last run has sent all" in text) == (0, True), text
    assert await count_records(kafka, target) == 1501
    await worker.stop()


async def test_a_route_without_a_topic_of_replays_is_refused(kafka: KafkaBroker, unique: Unique) -> None:
    topic = await make_topic(kafka, unique("orders"))
    for route, missing in ((unique("none"), "none-"), (topic, f"{topic}.replay")):
        servers = ["--bootstrap-servers", kafka.bootstrap_servers]
        code, text = await asyncio.to_thread(penstock, "replay", "--route", route, "--group-id", "g", *servers)
        assert (code, f"There is no topic {missing}" in text) == (2, True), text


async def test_a_group_that_has_not_the_route_is_refused(kafka: KafkaBroker, unique: Unique) -> None:
    topic = await make_topic(kafka, unique("orders"))
    await make_topic(kafka, f"{topic}.replay")
    await send(kafka, topic, [order(b"1", 1)])
    servers = ["--bootstrap-servers", kafka.bootstrap_servers]
    code, text = await asyncio.to_thread(penstock, "replay", "--route", topic, "--group-id", "other", *servers)
    assert (code, f"The group other has finished no record of {topic}." in text) == (2, True), text
