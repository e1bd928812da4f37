"""Requests through a real broker and a real worker process: each gets its own answer or error."""

import asyncio
import random
import struct
import time
from typing import Any

import msgpack
import numpy as np
from aiokafka import AIOKafkaProducer, TopicPartition

from penstock.ops.kafka import KafkaBroker
from penstock.producer import BackendError, BadTokenId, Client, PenstockError, TooLong
from penstock.producer.wire.messages import Options, Reply, Request, join_tokens
from tests.integration.conftest import StartWorker, Unique, letters_of, reader_of

POISON = 30_000  # the echo engine fails on it
MAX_TOKENS, VOCABULARY = 512, 30_522


def echo(ids: list[int]) -> list[float]:
    return [len(ids), ids[0], ids[-1], sum(ids)]


def mixed(rng: random.Random) -> tuple[Request, type[PenstockError] | None, list[list[int]]]:
    """A request, the error that it must get or None, and the sequences that its answer must echo."""
    kind = rng.choices(["one", "many", "truncated", "too long", "bad id", "poison"], [60, 25, 5, 5, 5, 0.1])[0]
    num_sequences = rng.randint(2, 32) if kind == "many" else 1
    # Half of the sequences are short, so that equal ones occur.
    sequences = [[rng.randrange(1, 9) for _ in range(rng.choice([1, 2, 30]))] for _ in range(num_sequences)]
    expected: type[PenstockError] | None = None
    options = Options(dtype=rng.choice(["float32", "float16"]))
    if kind == "truncated":
        sequences = [list(range(1, 600))]
        options = Options(truncate=True)
        return Request("", "embed", tokens=join_tokens(sequences), options=options), None, [[*range(1, 512), 599]]
    if kind == "too long":
        sequences, expected = [[7] * (MAX_TOKENS + 1)], TooLong
    if kind == "bad id":
        sequences, expected = [[5, VOCABULARY]], BadTokenId
    if kind == "poison":
        sequences, expected = [[POISON, rng.randrange(1000)]], BackendError
    return Request("", "embed", tokens=join_tokens(sequences), options=options), expected, sequences


async def test_ten_thousand_mixed_messages_each_get_their_own_answer(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker
) -> None:
    model = unique("mixed")
    worker = start_worker(kafka, served_name=model)
    rng = random.Random(20)
    cases = [mixed(rng) for _ in range(10_000)]

    async def ask(client: Client, request: Request) -> Reply | PenstockError:
        try:
            return await client.request(Request(model, request.task, request.tokens, None, request.options))
        except PenstockError as error:
            return error

    async with Client(bootstrap_servers=kafka.bootstrap_servers, model=model, timeout_s=300) as client:
        await worker.ready()
        answers = await asyncio.gather(*[ask(client, request) for request, _, _ in cases])
    for answer, (request, expected, sequences) in zip(answers, cases, strict=True):
        if expected is not None:
            assert type(answer) is expected
            continue
        assert isinstance(answer, Reply), answer
        assert answer.vectors is not None
        wanted = np.array([echo(ids) for ids in sequences]).astype(request.options.dtype)
        np.testing.assert_array_equal(answer.vectors, wanted)
    batches = worker.events("batch_done")
    assert sum(batch["sequences"] for batch in batches) < sum(len(sequences) for _, _, sequences in cases)
    assert max(batch["sequences"] for batch in batches) > 1


def u32(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def good(model: str) -> dict[str, Any]:
    return {"v": 1, "model": model, "task": "embed", "ids": u32(3, 4), "lens": u32(2)}


def bad_records(model: str) -> dict[str, tuple[bytes | None, list[tuple[str, bytes | None]] | None, str]]:
    """Bad records by fault: (value, further headers or None for no reply topic, code)."""

    def body(**changes: Any) -> bytes:
        fields = good(model) | changes
        return bytes(msgpack.packb({name: value for name, value in fields.items() if value is not ...}))

    million = np.ones(1_000_000, "<u4").tobytes()
    texts = {"ids": ..., "lens": ...}
    late = str(int(time.time() * 1000) - 5).encode()
    return {
        "not msgpack": (b"\xc1\x00 {", [], "invalid_request"),
        "a tombstone": (None, [], "invalid_request"),
        "unknown version": (body(v=9), [], "invalid_request"),
        "missing field": (body(task=...), [], "invalid_request"),
        "unknown model": (body(model="another"), [], "unknown_model"),
        "unknown task": (body(task="sing"), [], "unsupported_task"),
        "a task this model cannot do": (body(task="classify"), [], "unsupported_task"),
        "text for a model without tokenizer": (body(**texts, text="hello"), [], "unsupported_task"),
        "empty text": (body(**texts, text=["a", ""]), [], "empty"),
        "zero ids": (body(lens=u32(2, 0)), [], "empty"),
        "too long": (body(ids=u32(*[1] * 513), lens=u32(513)), [], "too_long"),
        "id outside the vocabulary": (body(ids=u32(1, VOCABULARY)), [], "bad_token_id"),
        "lens that do not add up": (body(lens=u32(3)), [], "invalid_request"),
        "five megabytes": (body(ids=bytes(5_000_000)), [], "invalid_request"),
        "a million sequences of ids": (body(ids=million, lens=million), [], "invalid_request"),
        "a million texts": (body(**texts, text=["a"] * 1_000_000), [], "invalid_request"),
        "nested without end": (body(opts=...)[:1] + b"\x91" * 100_000, [], "invalid_request"),
        "text that is not UTF-8": (
            body(**texts, text="????").replace(b"????", b"\xff\xfe\xfd\xfc"),
            [],
            "invalid_request",
        ),
        "an id the engine fails on": (body(ids=u32(POISON, 1)), [], "backend"),
        "expired deadline": (body(), [("penstock-deadline-ms", late)], "expired"),
        "a deadline that is no number": (body(), [("penstock-deadline-ms", b"soon")], "invalid_request"),
        "a header without a value": (body(v=8), [("x-null", None)], "invalid_request"),
        "no reply topic": (body(), None, "invalid_request"),
        "reply topic outside the allow-list": (body(), [("kafka_replyTopic", b"payments")], "invalid_request"),
        "reply partition that is no number": (body(), [("kafka_replyPartition", b"first")], "invalid_request"),
    }


UNANSWERABLE = {"no reply topic", "reply topic outside the allow-list", "reply partition that is no number"}
NOT_AT_FAULT = {"expired deadline"}  # their clients are told, and nothing is wrong with the records


async def test_bad_records_are_answered_and_dead_lettered_and_the_rest_is_served(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker
) -> None:
    model, inbox = unique("bad"), TopicPartition(unique("penstock.replies."), 0)
    topic = f"penstock.requests.{model}"
    worker = start_worker(kafka, served_name=model)
    bad = bad_records(model)
    address = [("kafka_replyTopic", inbox.topic.encode()), ("kafka_replyPartition", struct.pack(">i", 0))]

    def headers(name: str, further: list[tuple[str, bytes | None]] | None) -> list[tuple[str, bytes | None]]:
        return [("kafka_correlationId", name.encode()), *(address if further is not None else []), *(further or [])]

    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers, max_request_size=9_000_000)
    consumer = reader_of(kafka, max_partition_fetch_bytes=9_000_000)
    await worker.ready()
    async with producer, consumer:
        await producer.partitions_for(inbox.topic)
        for name, (value, further, _) in bad.items():
            await producer.send_and_wait(topic, value, name.encode(), partition=0, headers=headers(name, further))
            neighbour = headers(f"beside {name}", [])
            await producer.send_and_wait(topic, msgpack.packb(good(model)), partition=0, headers=neighbour)
        await worker.event("partitions_assigned")
        consumer.assign([inbox])
        num_replies = 2 * len(bad) - len(UNANSWERABLE)
        replies: dict[str, Any] = {}
        async with asyncio.timeout(300):
            while len(replies) < num_replies:
                record = await consumer.getone()
                replies[dict(record.headers)["kafka_correlationId"].decode()] = msgpack.unpackb(record.value)
    kept = await letters_of(kafka, topic, len(bad) - len(NOT_AT_FAULT))
    letters = {letter.record.key: letter for letter in kept}
    for name, (value, further, code) in bad.items():
        assert replies[f"beside {name}"]["ok"], name
        assert (name in replies) == (name not in UNANSWERABLE), name
        if name in replies:
            assert (replies[name]["ok"], replies[name]["error"]["code"]) == (False, code), name
            assert replies[name]["error"]["message"], name
        assert (name.encode() in letters) == (name not in NOT_AT_FAULT), name
        if name in NOT_AT_FAULT:
            continue
        letter = letters[name.encode()]
        assert (letter.record.value or None) == value, name
        assert set(headers(name, further)) <= set(letter.record.headers), name
        assert letter.code == code, name
        assert letter.headers["penstock-error-message"], name
        assert letter.source.startswith(f"{topic}-0-"), name
    assert worker.process.poll() is None
    assert worker.events("engine_unhealthy") == []
