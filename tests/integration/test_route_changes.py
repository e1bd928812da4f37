"""Only what changed is computed: a route with a response cache, over change events as Debezium writes them."""

import asyncio
import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from aiokafka import AIOKafkaConsumer

from penstock.ops.kafka import KafkaBroker
from tests.engine.helpers import save_sentence_transformer
from tests.integration.conftest import StartWorker, Unique, WorkerProcess, reader_of
from tests.integration.test_deadlines import metric
from tests.integration.test_minilm import computed
from tests.integration.test_routes import WORDS, Sent, make_topic, read, send

TEXTS = [f"w{n // 10} w{n % 10}" for n in range(40)]
GROUPS = [range(first, first + 4) for first in range(0, 40, 4)]


class Made(NamedTuple):
    """The checkpoints of a model's two versions."""

    old: Path
    new: Path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Made:
    directories = [tmp_path_factory.mktemp(name) for name in ("old", "new")]
    for directory in directories:
        save_sentence_transformer(directory, WORDS, normalize=directory is directories[1])
    return Made(*[directory / "model" for directory in directories])


def change(number: int, views: int) -> Sent:
    """An insert or an update of a row. The text is always the same."""
    after = {"id": number, "text": TEXTS[number], "views": views}
    document = {"before": None, "after": after, "op": "u" if views else "c"}
    return Sent(b"%d" % number, json.dumps(document).encode())


async def latest(worker: WorkerProcess, reader: AIOKafkaConsumer, rows: Sequence[int], views: int) -> dict[int, Any]:
    """The newest row of each key, once all of these have so many views."""
    found: dict[int, Any] = {}
    async with asyncio.timeout(300):
        while not all(number in found and found[number]["views"] == views for number in rows):
            assert worker.process.poll() is None, worker.tail()
            for records in (await reader.getmany(timeout_ms=500)).values():
                found |= {int(one.key or b""): json.loads(one.value or b"")["after"] for one in records}
    return found


def num_stored(cache: Path) -> int:
    with sqlite3.connect(cache) as database:
        (count,) = database.execute("SELECT count(*) FROM response").fetchone()
    database.close()
    return int(count)


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_an_update_without_a_new_text_costs_the_model_nothing_even_after_a_death(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, models: Made, tmp_path: Path, delivery: str
) -> None:
    """The partitions move to another worker of the machine, which has the file of the one that was killed."""
    source, output, cache = await make_topic(kafka, unique("rows")), unique("enriched"), tmp_path / "cache.sqlite"
    settings = {
        "model": models.old,
        "served_name": unique("routed"),
        "delivery": delivery,
        "cache_path": cache,
        "cache_ttl_s": float("inf"),
        "metrics_port": 0,
        "input_topic": source,
        "output_topic": output,
        "text": "/after/text",
        "result_field": "/after/vector",
    }
    await send(kafka, source, [change(number, 0) for number in range(40)])
    first = start_worker(kafka, **settings)
    async with reader_of(kafka, output, isolation_level="read_committed") as reader:
        before = await latest(first, reader, range(40), 0)
        async with asyncio.timeout(300):
            while num_stored(cache) < 40:  # noqa: ASYNC110 — replies do not wait for the cache, and there is no event
                await asyncio.sleep(0.1)
        first.process.kill()
        second = start_worker(kafka, **settings)
        for rows in GROUPS:  # texts that the second worker has never seen
            num_computed = computed(second)
            await send(kafka, source, [change(number, 7) for number in rows])
            after = await latest(second, reader, rows, 7)
            assert {number: after[number]["vector"] for number in rows} == {
                number: before[number]["vector"] for number in rows
            }
            if computed(second) == num_computed:
                break  # a look-up that takes long on a busy machine finds nothing
        else:
            pytest.fail("All unchanged texts were computed.")
    assert await metric(second, f'penstock_route_records_total{{outcome="cached",topic="{source}"}}') >= 4
    await second.stop()


async def test_a_result_of_another_model_is_never_used_and_each_names_its_own(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, models: Made, tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    source = await make_topic(kafka, unique("rows"))
    await send(kafka, source, [change(number, 0) for number in range(40)])
    revisions = []
    for model in models:
        output = unique("enriched")
        worker = start_worker(
            kafka,
            model=model,
            dtype="float32",
            served_name="minilm",
            cache_path=tmp_path / "cache.sqlite",
            input_topic=source,
            output_topic=output,
            text="/after/text",
            result_field="/after/vector",
            revision_field="/after/vector_revision",
        )
        found = await read(worker, kafka, output, 40)
        assert computed(worker) == 40
        await worker.stop()
        reference: Any = SentenceTransformer(str(model), device="cpu")
        for record in found:
            row = json.loads(record.value)["after"]
            np.testing.assert_allclose(row["vector"], reference.encode(row["text"]), atol=1e-5)
            assert row["vector_revision"] == f"minilm@{dict(record.headers)['penstock-revision'].decode()}"
        revisions.append({json.loads(record.value)["after"]["vector_revision"] for record in found})
    assert [len(found) for found in revisions] == [1, 1]
    assert revisions[0] != revisions[1]


def garble(cache: Path) -> None:
    """Other numbers in place of those of every result."""
    with sqlite3.connect(cache) as database:
        database.execute("UPDATE response SET sealed = substr(sealed, 1, 4) || zeroblob(length(sealed) - 4)")
    database.close()


def truncate(cache: Path) -> None:
    cache.write_bytes(cache.read_bytes()[: cache.stat().st_size // 2])
    for beside in ("-wal", "-shm"):
        cache.with_name(cache.name + beside).unlink(missing_ok=True)


@pytest.mark.parametrize("damage", [garble, truncate])
async def test_a_damaged_cache_costs_time_and_makes_no_record_wrong(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, models: Made, tmp_path: Path, damage: Any
) -> None:
    source, output, cache = await make_topic(kafka, unique("rows")), unique("enriched"), tmp_path / "cache.sqlite"
    settings = {
        "model": models.old,
        "served_name": unique("routed"),
        "cache_path": cache,
        "input_topic": source,
        "output_topic": output,
        "text": "/after/text",
        "result_field": "/after/vector",
    }
    await send(kafka, source, [change(number, 0) for number in range(40)])
    first = start_worker(kafka, **settings)
    async with reader_of(kafka, output) as reader:
        before = await latest(first, reader, range(40), 0)
        await first.stop()
        assert num_stored(cache) == 40
        damage(cache)
        second = start_worker(kafka, **settings)
        await send(kafka, source, [change(number, 1) for number in range(40)])
        after = await latest(second, reader, range(40), 1)
        assert computed(second) == 40 or damage is truncate
        await second.stop()
    for number in range(40):
        np.testing.assert_allclose(after[number]["vector"], before[number]["vector"], atol=1e-6)
