"""`penstock drift` on topics of a real broker, as the routes of two worker groups fill them."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from penstock.ops.kafka import KafkaBroker
from tests.engine.helpers import needs_bfloat16, save_sentence_transformer
from tests.integration.conftest import StartWorker, Unique
from tests.ops.command_line import penstock

Enriched = tuple[bytes | None, dict[str, Any] | None, str]  # key, value, and position of the input


@dataclass
class Versions:
    """Two output topics, and the command."""

    broker: KafkaBroker
    old: str
    new: str

    async def fill(self, topic: str, records: Sequence[Enriched], *, revision: str = "r1", partitions: int = 4) -> None:
        await self.create(topic, partitions)
        async with AIOKafkaProducer(bootstrap_servers=self.broker.bootstrap_servers) as producer:
            for record in records:
                await self.send(producer, topic, record, revision)

    async def create(self, topic: str, partitions: int) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.broker.bootstrap_servers)
        await admin.start()
        try:
            await admin.create_topics([NewTopic(topic, partitions, 1)])
        finally:
            await admin.close()

    async def send(self, producer: AIOKafkaProducer, topic: str, record: Enriched, revision: str = "r1") -> None:
        key, value, source = record
        headers = {"penstock-model": "minilm", "penstock-revision": revision, "penstock-source": source}
        await producer.send_and_wait(
            topic,
            None if value is None else json.dumps(value).encode(),
            key=key,
            headers=[(name, text.encode()) for name, text in headers.items() if text],
        )

    async def drift(self, *args: str, code: int = 0) -> tuple[Mapping[str, Any], str]:
        """The JSON report, if there is one, and all that was printed."""
        command = ["drift", self.old, self.new, *args, "--bootstrap-servers", self.broker.bootstrap_servers]
        exit_code, text = await asyncio.to_thread(penstock, *command)
        assert exit_code == code, text
        return json.loads(text) if "--json" in args and code != 2 else {}, text


@pytest.fixture
def versions(kafka: KafkaBroker, unique: Unique) -> Versions:
    return Versions(kafka, unique("orders.old"), unique("orders.new"))


def classified(number: int, label: str, *, keyed: bool = True, body: str = "a text") -> Enriched:
    result = {"label": label, "score": 0.9}
    value = {"id": number, "body": body, "result": result}
    return b"%d" % number if keyed else None, value, f"orders-0-{number}"


async def test_labels_of_the_latest_record_of_each_key_are_compared(versions: Versions) -> None:
    """Both topics have more partitions than one, and numbers of their own."""
    before = [classified(number, "a") for number in range(50)]
    deleted = [(b"7", None, "orders-0-50"), (b"8", None, "orders-0-51")]
    later = [classified(number, "b", body="changed") for number in range(5)]
    await versions.fill(versions.old, [*before, *deleted, *later])
    changed = [classified(number, "c" if number in (20, 21) else "b" if number < 5 else "a") for number in range(49)]
    of_later = [(key, {**(value or {}), "body": "changed"}, source) for key, value, source in changed[:5]]
    await versions.fill(versions.new, [*changed[5:], deleted[0], *of_later], revision="r2", partitions=3)

    report, _ = await versions.drift("--json")
    old, new = report["versions"]
    assert (old["records"], old["answers"], old["tombstones"], old["missing"]) == (57, 48, 2, 0)
    assert (new["answers"], new["tombstones"], new["missing"]) == (48, 1, 1)
    assert (old["models"], new["models"]) == ([["minilm", "r1", 48]], [["minilm", "r2", 48]])
    assert (report["pairs"], report["kind"]) == (47, "labels")
    assert report["measured"]["flows"] == [{"before": "a", "after": "c", "count": 2}]

    _, screen = await versions.drift("--max-label-changes", "0.04", code=1)
    assert "4.255% of the labels differ; at most 4% may." in screen
    assert "2 a → c" in screen
    assert (await versions.drift("--max-label-changes", "0.05", "--json"))[0]["passed"] is True


@needs_bfloat16
@pytest.mark.slow
async def test_the_routes_of_a_worker_and_of_its_shadow_in_another_precision(
    versions: Versions, unique: Unique, start_worker: StartWorker, tmp_path: Path
) -> None:
    source, broker = unique("orders"), versions.broker
    await versions.create(source, 2)
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number in range(12):
            text = None if number == 3 else {"id": number, "text": f"w{number} w{number + 1}"}
            await versions.send(producer, source, (b"%d" % number, text, ""))
    save_sentence_transformer(tmp_path, [f"w{number}" for number in range(20)])
    for output, dtype in ((versions.old, "float32"), (versions.new, "bfloat16")):
        worker = start_worker(
            broker,
            model=tmp_path / "model",
            dtype=dtype,
            served_name="minilm",
            task="embed",
            input_topic=source,
            output_topic=output,
            text="text",
            revision_field="result_revision",
            once=True,
        )
        assert await worker.exit_code() == 0, worker.tail()
    report, _ = await versions.drift("--json", "--min-cosine", "0.999999", code=1)
    assert [(one["keys"], one["answers"], one["tombstones"]) for one in report["versions"]] == [(12, 11, 1)] * 2
    assert report["versions"][0]["models"][0][0] == "minilm"
    assert (report["pairs"], report["answered"]) == (11, 11)
    assert report["measured"]["overlap"] > 0.9
    assert (await versions.drift("--json", "--min-cosine", "0.999"))[0]["passed"] is True


async def test_a_version_that_lags_behind_is_not_compared_with_a_later_record(versions: Versions) -> None:
    ends = [classified(number, "a") for number in range(10)]
    newer = [(b"0", {"id": 0, "body": "another text", "result": {"label": "b", "score": 1.0}}, "orders-0-10")]
    await versions.fill(versions.old, [*ends, *newer])
    await versions.fill(versions.new, ends)
    report, screen = await versions.drift("--json")
    assert (report["pairs"], report["other_inputs"], report["measured"]["changed"]) == (9, 1, 0)
    _, screen = await versions.drift()
    assert "1 pair not compared, whose inputs differ" in screen


@pytest.mark.parametrize("place", ["result", "/after/result"])
async def test_a_field_with_the_revision_is_no_part_of_the_input(versions: Versions, place: str) -> None:
    answers = [classified(number, "a") for number in range(6)]
    for topic, revision in ((versions.old, "r1"), (versions.new, "r2")):
        rows = [(key, {**(value or {}), "by": f"minilm@{revision}"}, at) for key, value, at in answers]
        if "after" in place:
            rows = [(key, {"op": "c", "after": value}, at) for key, value, at in rows]
        await versions.fill(topic, rows, revision=revision)
    assert (await versions.drift("--json", "--result-field", place))[0]["pairs"] == 6


async def test_records_of_an_answer_alone_are_of_one_input_if_their_position_is_equal(versions: Versions) -> None:
    await versions.fill(versions.old, [(b"1", {"result": 0.5}, "orders-0-1"), (b"2", {"result": 0.5}, "orders-0-2")])
    await versions.fill(versions.new, [(b"1", {"result": 0.5}, "orders-0-1"), (b"2", {"result": 0.5}, "orders-0-9")])
    report, _ = await versions.drift("--json")
    assert (report["pairs"], report["other_inputs"]) == (1, 1)


async def test_records_without_keys_are_paired_by_the_position_of_their_input(versions: Versions) -> None:
    vectors = [[float(number % 7), 1.0, float(number % 5)] for number in range(30)]
    rows = [(None, {"id": number, "result": vector}, f"orders-1-{number}") for number, vector in enumerate(vectors)]
    await versions.fill(versions.old, rows)
    await versions.fill(versions.new, list(reversed(rows)), partitions=1)
    report, _ = await versions.drift("--json", "--min-cosine", "1")
    assert (report["pairs"], report["passed"]) == (30, True)
    assert report["measured"]["cosine"]["min"] == pytest.approx(1.0)
    assert report["measured"]["overlap"] == 1.0


async def test_aborted_and_open_transactions_are_not_read(versions: Versions) -> None:
    await versions.fill(versions.old, [classified(number, "a") for number in range(8)], partitions=1)
    await versions.create(versions.new, 1)
    servers = versions.broker.bootstrap_servers
    async with AIOKafkaProducer(bootstrap_servers=servers, transactional_id=versions.new) as producer:
        async with producer.transaction():
            for number in range(8):
                await versions.send(producer, versions.new, classified(number, "a"))
        for end in (producer.abort_transaction, None):
            await producer.begin_transaction()
            for number in range(8):
                await versions.send(producer, versions.new, classified(number, "b"))
            if end is not None:
                await end()
        report, _ = await versions.drift("--json")
        assert (report["pairs"], report["measured"]["changed"]) == (8, 0)
        assert report["versions"][1]["records"] == 8
        await producer.abort_transaction()


async def test_a_sample_of_large_topics_has_the_same_keys_of_both(versions: Versions) -> None:
    await versions.fill(versions.old, [classified(number, "a") for number in range(300)], partitions=1)
    await versions.fill(versions.new, [classified(number, "b") for number in reversed(range(300))], partitions=6)
    report, _ = await versions.drift("--json", "--sample", "20")
    assert (report["keys"], report["pairs"], report["measured"]["changed"]) == (20, 20, 20)


async def test_what_cannot_be_compared_is_refused_with_its_reason(versions: Versions) -> None:
    _, said = await versions.drift(code=2)
    assert f"There is no topic {versions.old}." in said
    await versions.fill(versions.old, [classified(1, "a")])
    await versions.create(versions.new, 4)
    assert f"{versions.new} holds no record." in (await versions.drift(code=2))[1]
    async with AIOKafkaProducer(bootstrap_servers=versions.broker.bootstrap_servers) as producer:
        await versions.send(producer, versions.new, (b"2", {"id": 1, "result": "a"}, ""))
        assert "have no key in common" in (await versions.drift(code=2))[1]
        await versions.send(producer, versions.new, (b"1", {"id": 1, "body": "a text", "answer": 0.5}, "orders-0-1"))
        _, said = await versions.drift(code=2)
        assert "has nothing at /result. Its fields: id, body, answer" in said
        await versions.send(producer, versions.new, (b"1", {"id": 1, "result": [1.0, None]}, "orders-0-1"))
        assert "holds null among the numbers of its vector" in (await versions.drift(code=2))[1]
        await producer.send_and_wait(versions.new, b"\0\0\0\0\1abc", key=b"1")
        assert "is not JSON" in (await versions.drift(code=2))[1]
        await producer.send_and_wait(versions.new, b"{}")
        assert "has neither a key nor the header penstock-source" in (await versions.drift(code=2))[1]
