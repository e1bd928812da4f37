"""The real model through the whole pipeline, against sentence-transformers."""

import asyncio
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

from penstock.engine.types import Float32Array
from penstock.ops.demo.banking77 import HEAD, read_messages
from penstock.ops.kafka import KafkaBroker
from penstock.producer import Client
from penstock.producer.wire.messages import Request
from tests.integration.conftest import StartWorker, Unique


def reference(model: Path, texts: list[str]) -> Float32Array:
    from sentence_transformers import SentenceTransformer

    loaded = SentenceTransformer(str(model), device="cpu")
    loaded.max_seq_length = 512
    vectors = loaded.encode(texts, batch_size=64, normalize_embeddings=True, show_progress_bar=False)
    return np.asarray(vectors, np.float32)


def computed(worker: Any) -> int:
    """Number of sequences that the engine has run."""
    return sum(batch["sequences"] for batch in worker.events("batch_done"))


async def test_messages_of_banking77_agree_with_sentence_transformers_in_fp32(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, minilm: Path
) -> None:
    model = unique("minilm")
    worker = start_worker(kafka, model=minilm, served_name=model, dtype="float32")
    texts = [message.text for message in read_messages()[::4]]
    async with Client(bootstrap_servers=kafka.bootstrap_servers, model=model, timeout_s=300) as client:
        await worker.ready()
        single = await asyncio.gather(*[client.embed(text) for text in texts[:300]])
        in_bulk = await client.embed(texts[300:])
    worker.process.terminate()
    vectors = np.concatenate([np.stack(single), in_bulk])
    expected = await asyncio.to_thread(reference, minilm, texts)
    cosines = np.sum(vectors * expected, axis=1) / np.linalg.norm(vectors, axis=1) / np.linalg.norm(expected, axis=1)
    assert vectors.shape == (770, 384)
    assert cosines.min() > 0.99999


async def test_a_repeated_request_is_answered_from_the_cache_with_equal_results(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, minilm: Path, tmp_path: Path
) -> None:
    model = unique("cached")
    worker = start_worker(
        kafka, model=minilm, served_name=model, head=HEAD, cache_path=tmp_path / "cache.sqlite", metrics_port=0
    )
    messages = read_messages()[::6]
    requests = [Request(model, "embed", text=(message.text,)) for message in messages]
    async with Client(bootstrap_servers=kafka.bootstrap_servers, model=model, timeout_s=300) as client:

        async def embed_all() -> tuple[int, Float32Array]:
            replies = await asyncio.gather(*[client.request(request) for request in requests])
            return sum(reply.cached for reply in replies), np.concatenate([reply.vectors for reply in replies])

        await worker.ready()
        _, first = await embed_all()
        async with asyncio.timeout(300):
            num_cached = 0
            while num_cached < len(messages):  # replies do not wait for the cache, nor for a slow look-up
                once_computed = computed(worker)
                num_cached, second = await embed_all()
        assert computed(worker) == once_computed
        np.testing.assert_array_equal(second, first)

        vectors = await asyncio.gather(*[client.embed("a text that is not in the cache yet") for _ in range(50)])
        assert computed(worker) == once_computed + 1
        assert all(np.array_equal(vector, vectors[0]) for vector in vectors)

        # Another task on the same texts has other results: none of them is in the cache.
        answers = await client.classify([message.text for message in messages], top_k=2)
        assert computed(worker) == once_computed + 1 + len({message.text for message in messages})
        right = [answer.label == message.category for answer, message in zip(answers, messages, strict=True)]
        assert np.mean(right) > 0.85
        assert all(answer.scores[0] >= answer.scores[1] for answer in answers)

    port = (await worker.event("metrics_served"))["port"]
    with await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}/metrics") as page:
        metrics = page.read().decode()
    assert f'penstock_sequences_total{{source="engine"}} {computed(worker)}.0' in metrics


async def test_the_client_may_tokenize_and_the_answer_is_the_same(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, minilm: Path
) -> None:
    model = unique("tokens")
    worker = start_worker(kafka, model=minilm, served_name=model, dtype="float32")
    texts = ["short", "a rather longer text, with punctuation!", "Ünïcödé 漢字 🙂"]
    async with (
        Client(bootstrap_servers=kafka.bootstrap_servers, model=model) as there,
        Client(bootstrap_servers=kafka.bootstrap_servers, model=model, tokenizer=minilm) as here,
    ):
        await worker.ready()
        by_worker, by_client = await there.embed(texts), await here.embed(texts)
        np.testing.assert_allclose(by_client, by_worker, atol=1e-6)
        long = "word " * 5000
        cut_by_worker = await there.embed(long, truncate=True)
        cut_by_client = await here.embed(long, truncate=True)
        np.testing.assert_allclose(cut_by_client, cut_by_worker, atol=1e-6)
