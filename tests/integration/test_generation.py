"""Generation through a real broker and a worker: the tokens are those of transformers, and each request ends alone."""

import asyncio
import time
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from aiokafka import AIOKafkaProducer
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from penstock.ops.kafka import KafkaBroker
from penstock.producer import BackendError, Client, Generation, InvalidRequest, Options, UnsupportedTask
from penstock.producer.wire.codec import encode_request
from penstock.producer.wire.headers import CORRELATION_ID, REPLY_PARTITION, request_headers
from penstock.producer.wire.messages import Request, join_tokens
from penstock.producer.wire.topics import request_topic
from tests.engine.generation.helpers import VOCAB, expected, save_seq2seq, sources
from tests.integration.conftest import CountRecords, StartWorker, Unique, reader_of

POISON = VOCAB - 1  # a token whose embedding is finite, and overflows in the encoder's first product


def add_tokenizer(directory: Path) -> None:
    """A tokenizer of the words w0, w1, …, whose ids they name."""
    tokenizer = Tokenizer(models.WordLevel({"</s>": 2} | {f"w{i}": i for i in range(VOCAB) if i != 2}, unk_token="w3"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}', encoding="utf-8")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A random T5 and its directory."""
    directory = tmp_path_factory.mktemp("t5")
    model = save_seq2seq(directory, "t5-gated")
    add_tokenizer(directory)
    return directory, model


@pytest.fixture(scope="module")
def overflowing(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A random Marian model whose scores of a source with POISON are not finite. Norms hide large vectors in T5."""
    directory = tmp_path_factory.mktemp("marian")
    model = save_seq2seq(directory, "marian-untied", max_position_embeddings=1024)
    tensors = load_file(directory / "model.safetensors")
    tensors["model.encoder.embed_tokens.weight"][POISON] = 3e38
    save_file(tensors, directory / "model.safetensors")
    add_tokenizer(directory)
    return directory, model


async def test_generated_tokens_are_those_of_transformers(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, checkpoint: tuple[Path, Any], tmp_path: Path
) -> None:
    directory, reference = checkpoint
    model, cache = unique("t5"), tmp_path / "cache.sqlite"
    worker = start_worker(kafka, model=directory, served_name=model, cache_path=cache)
    batch = sources([3, 9, 17, 5], seed=3)
    texts = ["w20 w31 w42", "w55 w56 w57 w58"]
    ways: list[dict[str, Any]] = [{"max_new_tokens": 12}, {"max_new_tokens": 9, "num_beams": 4, "length_penalty": 0.5}]
    async with Client(bootstrap_servers=kafka.bootstrap_servers, model=model, timeout_s=300) as client:
        await worker.ready()
        for options in ways:
            rows, of_texts = await asyncio.gather(
                client.generate(ids=batch, **options), client.generate(texts, **options)
            )
            for source, row in zip(batch, rows, strict=True):
                assert list(row.tokens) == expected(reference, source, **options)
                assert row.text is None
            for text, row in zip(texts, of_texts, strict=True):
                ids = np.array([*(int(word[1:]) for word in text.split()), 2], np.int32)
                assert list(row.tokens) == expected(reference, ids, **options)
                assert row.text == " ".join(f"w{token}" for token in row.tokens if token != 2)
            assert await client.generate(ids=batch, **options) == rows  # from the cache
        source = batch[2]
        streamed: dict[str, Any] = {"max_new_tokens": 40, "min_new_tokens": 40}
        *partial, last = [row async for row in client.stream(ids=source, **streamed)]
        assert list(last.tokens) == expected(reference, source, **streamed)
        assert last.finish == "length"
        assert partial
        assert all(row.finish == "partial" and row.tokens == last.tokens[: len(row.tokens)] for row in partial)
        *_, last = [row async for row in client.stream(texts[0], **ways[0])]
        assert [last] == await client.generate(texts[0], **ways[0])
        seeded: dict[str, Any] = {"max_new_tokens": 8, "do_sample": True, "temperature": 2.0, "seed": 11}
        assert await client.generate(ids=batch, **seeded) == await client.generate(ids=batch, **seeded)
        flat: dict[str, Any] = {"max_new_tokens": 20, "do_sample": True, "temperature": 50.0, "top_k": 0}
        unseeded = [await client.generate(ids=batch[:1], **flat) for _ in range(4)]
        assert len({row.tokens for (row,) in unseeded}) > 1


async def test_a_request_that_is_late_poisoned_or_wrong_ends_alone(
    kafka: KafkaBroker,
    unique: Unique,
    start_worker: StartWorker,
    overflowing: tuple[Path, Any],
    count_records: CountRecords,
) -> None:
    directory, reference = overflowing
    model = unique("marian")
    worker = start_worker(kafka, model=directory, served_name=model)
    (source,) = sources([6], seed=4)
    long = {"max_new_tokens": 1000, "min_new_tokens": 1000}
    async with Client(bootstrap_servers=kafka.bootstrap_servers, model=model, timeout_s=300) as client:
        await worker.ready()
        good = asyncio.create_task(client.generate(ids=[source], max_new_tokens=300, min_new_tokens=300))
        late = asyncio.create_task(answer(kafka, unique, model, source, long, within_s=0.3))
        ways = [(("top_k", 1),), (("num_beams", 3),), (("do_sample", True), ("seed", 5)), (("top_k", 1),)]
        for way in ways:  # the last as the first: what has failed is not cached
            poisoned = await client.map("generate", ids=[source, [POISON, 20]], options=Options(generation=way))
            assert isinstance(poisoned[0], Generation)
            assert isinstance(poisoned[1], BackendError)
            assert "not finite" in str(poisoned[1])
        (row,) = await good
        assert list(row.tokens) == expected(reference, source, max_new_tokens=300, min_new_tokens=300)
        # It leaves at the step after its deadline, or is not admitted where the device is known to be too slow.
        assert (await late)["error"]["code"] in {"expired", "overloaded"}
        wrongs: list[dict[str, Any]] = [
            {"num_beams": 10_000},
            {"max_new_tokens": 0},
            {"temperature": -1.0, "do_sample": True},
        ]
        for wrong in wrongs:
            with pytest.raises(InvalidRequest, match=next(iter(wrong))):
                await client.generate(ids=[source], **wrong)
        with pytest.raises(UnsupportedTask):
            await client.embed(ids=[source])
    refused = [event["code"] for event in worker.events("request_refused")]
    assert refused.count("expired") + refused.count("overloaded") == 1
    dead_letters, expected_letters = f"{request_topic(model)}.dead-letter", len(ways) + len(wrongs) + 1
    async with asyncio.timeout(300):  # a letter may be written after its reply
        while await count_records(kafka, dead_letters) < expected_letters:  # noqa: ASYNC110 — brokers are asked
            await asyncio.sleep(0.1)
    assert await count_records(kafka, dead_letters) == expected_letters
    await worker.stop()


async def answer(
    kafka: KafkaBroker, unique: Unique, model: str, source: Any, options: dict[str, int], within_s: float
) -> Any:
    """The worker's own answer to a request with this deadline: a client stops waiting when it passes."""
    replies, servers = unique("penstock.replies."), kafka.bootstrap_servers
    generation = Options(generation=tuple(sorted(options.items())))
    value = encode_request(Request(model, "generate", join_tokens([source]), options=generation))
    async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
        await producer.partitions_for(request_topic(model))
        headers = request_headers(b"late", replies, 0, int((time.time() + within_s) * 1e3))
        headers = [(name, content) for name, content in headers if name != REPLY_PARTITION]
        await producer.send_and_wait(request_topic(model), value, headers=headers)
    consumer = reader_of(kafka, replies)
    async with consumer, asyncio.timeout(300):
        record = await consumer.getone()
    assert dict(record.headers)[CORRELATION_ID] == b"late"
    return msgpack.unpackb(record.value)
