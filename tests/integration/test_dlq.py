"""Dead letters and replays through the command line, on a real broker."""

import asyncio
import json
import struct
import time
from dataclasses import dataclass
from typing import Any

import msgpack
import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from typer.testing import CliRunner

from penstock.ops.cli.main import app
from penstock.ops.kafka import KafkaBroker
from tests.integration.conftest import CountRecords, StartWorker, Unique, letters_of, reader_of
from tests.integration.echo_worker import POISON

PARTITION = 2
SENT_MS = int(time.time() * 1000) - 5000


@dataclass
class Desk:
    """A model's topics, and the commands."""

    broker: KafkaBroker
    model: str
    replies: str

    @property
    def topic(self) -> str:
        return f"penstock.requests.{self.model}"

    async def penstock(self, *args: str, code: int = 0) -> tuple[list[Any], str]:
        """JSON lines of stdout, and all that was printed."""
        command = [*args, "--bootstrap-servers", self.broker.bootstrap_servers]
        env = {"COLUMNS": "300", "NO_COLOR": "1", "TERM": "dumb"}
        done = await asyncio.to_thread(CliRunner().invoke, app, command, prog_name="penstock", env=env)
        assert done.exit_code == code, done.output
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{") and line.endswith("}")]
        return lines, done.output

    async def dlq(self, command: str, *args: str, code: int = 0) -> tuple[list[Any], str]:
        return await self.penstock("dlq", command, "--model", self.model, *args, code=code)

    async def send(self, *tokens: int, topic: str = "", headers: tuple[tuple[str, bytes], ...] = ()) -> None:
        """One request for each token; its correlation id is the token."""
        async with AIOKafkaProducer(bootstrap_servers=self.broker.bootstrap_servers) as producer:
            await producer.partitions_for(self.replies)
            for token in tokens:
                ids, lens = struct.pack("<I", token), struct.pack("<I", 1)
                value = msgpack.packb({"v": 1, "model": self.model, "task": "embed", "ids": ids, "lens": lens})
                address = [("kafka_correlationId", b"%d" % token), ("kafka_replyTopic", self.replies.encode())]
                sent = {
                    "partition": PARTITION,
                    "key": b"my key",
                    "headers": [*address, *headers],
                    "timestamp_ms": SENT_MS,
                }
                await producer.send_and_wait(topic or self.topic, value, **sent)

    async def read(self, topic: str, count: int) -> list[Any]:
        """The first records of a topic, by partition and offset."""
        consumer = reader_of(self.broker)
        async with consumer, asyncio.timeout(300):
            consumer.assign([TopicPartition(topic, p) for p in range(4)])
            found = [await consumer.getone() for _ in range(count)]
        return sorted(found, key=lambda record: (record.partition, record.offset))


@pytest.fixture
async def desk(kafka: KafkaBroker, unique: Unique, start_worker: StartWorker) -> Desk:
    desk = Desk(kafka, unique("letters"), unique("penstock.replies."))
    await start_worker(kafka, served_name=desk.model).ready()
    return desk


async def test_letters_are_listed_shown_answered_and_replayed_until_they_would_loop(
    desk: Desk, unique: Unique, count_records: CountRecords
) -> None:
    await desk.send(5, POISON, POISON + 600)
    await desk.send(POISON, topic=f"{desk.topic}.bulk", headers=(("penstock-deadline-ms", b"9999999999999"),))
    first_replies = await desk.read(desk.replies, 4)
    await letters_of(desk.broker, desk.topic, 2)
    await letters_of(desk.broker, f"{desk.topic}.bulk", 1)

    listed, _ = await desk.dlq("ls", "--json")
    found = {(one["code"], one["source"]): one for one in listed}
    poison = found["backend", f"{desk.topic}-{PARTITION}-1"]
    assert set(found) == {
        ("backend", f"{desk.topic}-{PARTITION}-1"),
        ("bad_token_id", f"{desk.topic}-{PARTITION}-2"),
        ("backend", f"{desk.topic}.bulk-{PARTITION}-0"),
    }
    assert (poison["type"], poison["sent_ms"], poison["replays"]) == ("builtins.ValueError", SENT_MS, 0)
    assert poison["attempts"] >= 1
    assert poison["group"] == f"penstock.{desk.model}"
    assert poison["worker"].startswith("penstock-worker-000-")

    _, table = await desk.dlq("ls", "--reason", "backend", "--letters", "online")
    assert "1 dead letter: backend 1." in table
    assert f"{poison['id']} " in table
    _, table = await desk.dlq("ls", "--limit", "1")
    assert "1 of them are listed" in table

    _, shown = await desk.dlq("show", poison["id"])
    details = json.loads(shown)
    assert details["headers"][0] == ["kafka_correlationId", str(POISON)]
    assert not [name for name, _ in details["headers"] if "error" in name or name.startswith("__dlq")]
    assert details["request"] == {"model": desk.model, "task": "embed", "sequences": 1}
    assert "no such dead letter" in (await desk.dlq("show", "7:12345", code=1))[1]
    assert "An id is" in (await desk.dlq("show", "seven", code=2))[1]

    before = await count_records(desk.broker, desk.topic)
    planned, said = await desk.dlq("replay", "--reason", "backend", "--json")
    assert sorted(one["to"] for one in planned) == [desk.topic, f"{desk.topic}.bulk"]
    assert "dry run" in said
    assert await count_records(desk.broker, desk.topic) == before

    local = ("dlq", "answer", "--model", "null", "--served-name", desk.model, "--json")  # its engine fails on no token
    outcomes, said = await desk.penstock(*local, code=1)
    assert sorted(one.get("code", one["outcome"]) for one in outcomes) == ["answered", "answered", "bad_token_id"]
    assert "dry run" in said
    elsewhere = unique("penstock.replies.")
    _, said = await desk.penstock(*local, "--id", poison["id"], "--execute", "--to-reply-topic", elsewhere)
    assert f"Sent 1 reply to {elsewhere}." in said
    (reply,) = await desk.read(elsewhere, 1)
    assert reply.key in {one.key for one in first_replies}
    assert msgpack.unpackb(reply.value)["ok"]
    assert dict(reply.headers)["kafka_correlationId"] == b"%d" % POISON

    _, said = await desk.dlq("replay", "--id", poison["id"], "--execute")
    assert f"Sent 1 record to {desk.topic}." in said
    again = (await desk.read(desk.topic, before + 1))[-1]
    headers = dict(again.headers)
    assert (again.key, again.partition) == (b"my key", PARTITION)
    assert headers["penstock-replay-of"] == b"%s-2-1" % desk.topic.encode()
    assert headers["penstock-replays"] == b"1"
    assert not [name for name in headers if "error" in name or name.startswith("penstock-source")]
    replies = await desk.read(desk.replies, 5)
    (second_reply,) = [one for one in replies if one.key not in {first.key for first in first_replies}]
    assert dict(second_reply.headers)["penstock-replay-of"] == b"%s-2-1" % desk.topic.encode()

    await letters_of(desk.broker, desk.topic, 3)
    skipped, said = await desk.dlq("replay", "--max-replays", "1", "--letters", "online", "--json")
    assert [one for one in skipped if one.get("skipped") == "sent again 1 times already"]
    second = next(one for one in (await desk.dlq("ls", "--json"))[0] if one["replays"] == 1)
    _, said = await desk.dlq("replay", "--id", second["id"], "--execute", "--deadline-s", "60")
    assert f"Sent 1 record to {desk.topic}." in said
    headers = dict((await desk.read(desk.topic, before + 2))[-1].headers)
    assert headers["penstock-replay-of"] == b"%s-2-1" % desk.topic.encode()
    assert headers["penstock-replays"] == b"2"
    assert int(headers["penstock-deadline-ms"]) > 1_700_000_000_000


async def test_a_range_of_requests_is_replayed_to_the_bulk_topic(
    desk: Desk, unique: Unique, count_records: CountRecords
) -> None:
    await desk.send(1, 2, 3, 4, headers=(("penstock-deadline-ms", b"9999999999999"), ("x", b"mine")))
    keys = {record.key for record in await desk.read(desk.replies, 4)}
    options = ["replay", "--topic", desk.topic, "--partition", "2", "--from", "1", "--to", "2", "--to-bulk"]
    _, said = await desk.penstock(*options)
    assert f"Would send 2 records to {desk.topic}.bulk." in said
    elsewhere = unique("penstock.replies.")
    await desk.penstock(*options, "--execute", "--to-reply-topic", elsewhere, "--to-reply-partition", "1")
    again = await desk.read(elsewhere, 2)
    found = {dict(record.headers)["kafka_correlationId"]: dict(record.headers) for record in again}
    assert {call: headers["penstock-replay-of"] for call, headers in found.items()} == {
        b"2": b"%s-2-1" % desk.topic.encode(),
        b"3": b"%s-2-2" % desk.topic.encode(),
    }
    assert not {record.key for record in again} & keys
    assert {record.partition for record in again} == {1}
    sent = await desk.read(f"{desk.topic}.bulk", 2)
    assert [dict(record.headers)["x"] for record in sent] == [b"mine"] * 2
    assert not any("penstock-deadline-ms" in dict(record.headers) for record in sent)
    assert await count_records(desk.broker, desk.topic) == 4
    _, said = await desk.penstock("replay", "--topic", unique("none"), "--partition", "0", "--from", "0", code=2)
    assert "There is no topic none" in said
