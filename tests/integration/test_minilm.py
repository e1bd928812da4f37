"""The real model through the whole pipeline, against sentence-transformers."""

import asyncio
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.engine.types import Float32Array
from penstock.ops.demo.banking77 import HEAD, read_messages
from penstock.ops.kafka import KafkaBroker
from penstock.producer import Client
from penstock.producer.messages import Reply, Request


def reference(model: Path, texts: list[str]) -> Float32Array:
    from sentence_transformers import SentenceTransformer

    loaded = SentenceTransformer(str(model), device="cpu")
    loaded.max_seq_length = 512
    vectors = loaded.encode(texts, batch_size=64, normalize_embeddings=True, show_progress_bar=False)
    return np.asarray(vectors, np.float32)


def computed(worker: Any) -> int:
    """Sequences that the engine has run."""
    return sum(batch["sequences"] for batch in worker.events("batch_done"))


@pytest.mark.timeout(240)
async def test_all_banking77_messages_agree_with_sentence_transformers_and_come_again_from_the_cache(
    kafka: KafkaBroker, unique: Callable[[str], str], start_worker: Callable[..., Any], minilm: Path, tmp_path: Path
) -> None:
    model = unique("minilm")
    cache = tmp_path / "cache.sqlite"
    worker = start_worker(
        kafka, model=minilm, served_name=model, head=HEAD, dtype="float32", cache_path=cache, metrics_port=0
    )
    texts = [message.text for message in read_messages()]
    requests = [Request(model, "embed", text=(text,)) for text in texts]
    async with Client(bootstrap_servers=kafka.bootstrap_servers, model=model, timeout_s=120) as client:

        async def embed_all() -> tuple[list[Reply], Float32Array]:
            replies = await asyncio.gather(*[client.request(request) for request in requests])
            return replies, np.concatenate([reply.vectors for reply in replies])

        await worker.ready()
        _, vectors = await embed_all()
        once_computed = computed(worker)
        assert once_computed <= len(texts)

        replies, again = await embed_all()
        assert sum(reply.cached for reply in replies) == len(texts)
        assert computed(worker) == once_computed
        np.testing.assert_array_equal(again, vectors)

        alike = await asyncio.gather(*[client.embed("a text that nobody has sent yet") for _ in range(50)])
        assert computed(worker) == once_computed + 1
        assert all(np.array_equal(vector, alike[0]) for vector in alike)

        in_bulk = await client.embed(texts[:200])
        np.testing.assert_array_equal(in_bulk, vectors[:200])

        some = read_messages()[::6]
        answers = await client.classify([message.text for message in some], top_k=2)
        right = [answer.label == message.category for answer, message in zip(answers, some, strict=True)]
        assert np.mean(right) > 0.85
        assert all(answer.scores[0] >= answer.scores[1] for answer in answers)

    port = (await worker.event("metrics_served"))["port"]
    page = await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}/metrics")
    with page:
        metrics = page.read().decode()
    assert f'penstock_sequences_total{{source="cache"}} {len(texts) + 200}.0' in metrics

    expected = await asyncio.to_thread(reference, minilm, texts)
    cosines = np.sum(vectors * expected, axis=1) / np.linalg.norm(vectors, axis=1) / np.linalg.norm(expected, axis=1)
    assert vectors.shape == (3080, 384)
    assert cosines.min() > 0.99999


async def test_the_client_may_tokenize_and_the_answer_is_the_same(
    kafka: KafkaBroker, unique: Callable[[str], str], start_worker: Callable[..., Any], minilm: Path
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
