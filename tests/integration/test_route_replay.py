"""`penstock replay --route`: the history of a route is enriched again, beside live records."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.ops.kafka import KafkaBroker
from tests.engine.helpers import save_sentence_transformer
from tests.integration.conftest import StartWorker, Unique, WorkerProcess
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
