"""Sparse vectors and vectors of tokens through a real broker, a worker of echo_worker.py, and its cache."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import MultiVectorEncoder, SparseEncoder

from penstock.ops.kafka import KafkaBroker
from penstock.producer import Client, InvalidRequest, SparseVector, TextVectors, UnsupportedTask
from penstock.producer.wire.messages import EMBEDDING_TASKS, Options, Request, join_tokens
from tests.engine.helpers import cpu_engine, needs_vnni, pack, save_encoder
from tests.engine.model.test_reference_late_interaction import save_pylate
from tests.engine.model.test_reference_vectors import Bgem3, save_bge_m3, save_masked_lm
from tests.integration.conftest import StartWorker, Unique
from tests.integration.echo_worker import UNKNOWN

IDS = [[7, 5, 5], [UNKNOWN], [9, 8]]


def expected(task: str, ids: list[int]) -> Any:
    vector = np.array([len(ids), ids[0], ids[-1], sum(ids)], np.float32)
    known = sorted({*ids} - {UNKNOWN})
    sparse = SparseVector(np.array(known, np.uint32), np.array([ids.count(one) for one in known], np.float32))
    tokens = np.array([[one, place] for place, one in enumerate(ids)], np.float32)
    rows = {"embed": vector, "embed_sparse": sparse, "embed_tokens": tokens}
    return rows.get(task, TextVectors(vector, tokens, sparse))


def assert_same(row: Any, wanted: Any) -> None:
    """Arrays, or tuples of them."""
    assert type(row) is type(wanted)
    if isinstance(row, tuple):
        for part, other in zip(row, wanted, strict=True):
            assert_same(part, other)
    else:
        assert (row.shape, row.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_array_equal(row, wanted)


async def test_each_task_has_its_own_results_from_the_engine_and_from_the_cache(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, tmp_path: Path
) -> None:
    model = unique("embeddings")
    worker = start_worker(kafka, served_name=model, cache_path=tmp_path / "cache.sqlite", max_reply_bytes=2000)
    async with Client(bootstrap_servers=kafka.bootstrap_servers, model=model) as client:
        await worker.ready()
        calls: list[Any] = [client.embed, client.embed_sparse, client.embed_tokens, client.embed_all]
        tasks = ["embed", "embed_sparse", "embed_tokens", "embed_all"]
        for task, rows in zip(tasks, await asyncio.gather(*[call(ids=IDS) for call in calls]), strict=True):
            for row, ids in zip(rows, IDS, strict=True):
                assert_same(row, expected(task, ids))

        for task in sorted(EMBEDDING_TASKS):
            request = Request(model, task, join_tokens(IDS))
            async with asyncio.timeout(300):
                while (reply := await client.request(request)).cached < len(IDS):
                    pass  # replies do not wait for the cache
            for row, ids in zip(reply.rows(task), IDS, strict=True):
                assert_same(row, expected(task, ids))

        [[largest, _, _], [half, _, _]] = (
            await client.embed_sparse(ids=IDS, top_k=1),  # of what is cached whole
            await client.embed_tokens(ids=IDS, dtype="float16"),
        )
        assert_same(largest, SparseVector(np.array([5], np.uint32), np.array([2], np.float32)))
        assert_same(half, expected("embed_tokens", IDS[0]).astype(np.float16))


@needs_vnni
async def test_eight_bits_and_float32_do_not_share_a_cache(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, tmp_path: Path
) -> None:
    """Each of two workers, one after the other, answers what the engine computes in its own precision."""
    directory, model = tmp_path / "model", unique("precise")
    save_encoder(directory, "bert", hidden_size=128, intermediate_size=256, num_attention_heads=4)
    ids = [[7, 5, 5], [9, 8, 3, 2]]
    arrays = [np.array(one, np.int32) for one in ids]
    wanted = {dtype: cpu_engine(directory, dtype).run(pack(arrays)).rows for dtype in ("float32", "int8")}
    assert np.abs(wanted["float32"][0] - wanted["int8"][0]).max() > 1e-6
    async with Client(bootstrap_servers=kafka.bootstrap_servers, model=model) as client:
        for dtype, rows in wanted.items():
            worker = start_worker(
                kafka,
                model=directory,
                served_name=model,
                cache_path=tmp_path / "cache.sqlite",
                dtype=dtype,
                device="cpu",
            )
            await worker.ready()
            for row, expected_row in zip(await client.embed(ids=ids), rows, strict=True):
                assert_same(row, expected_row)
            await worker.stop()


async def test_a_checkpoint_gives_each_kind_of_a_text_as_its_authors_compute_it(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, tmp_path: Path
) -> None:
    """A small random one in bge-m3's layout, whose texts the worker tokenizes, or the client."""
    model, directory = unique("bge-m3"), save_bge_m3(tmp_path)
    worker = start_worker(
        kafka, model=directory, served_name=model, dtype="float32", cache_path=tmp_path / "cache.sqlite"
    )
    texts = ["card lost", "my card is lost", "rate?"]
    reference = [Bgem3(tmp_path / "published")(text) for text in texts]
    assert any(weights for _, _, weights in reference)
    servers = kafka.bootstrap_servers
    async with (
        Client(bootstrap_servers=servers, model=model) as client,
        Client(bootstrap_servers=servers, model=model, tokenizer=directory) as tokenizing,
    ):
        await worker.ready()
        for one in (client, tokenizing):
            every = await one.embed_all(texts)
            sparse, tokens = await one.embed_sparse(texts), await one.embed_tokens(texts)
            for row, alone, matrix, (vector, vectors, weights) in zip(every, sparse, tokens, reference, strict=True):
                np.testing.assert_allclose(row.vector, vector, atol=1e-5)
                for found in (row.sparse, alone):
                    assert found.ids.tolist() == sorted(weights)
                    np.testing.assert_allclose(found.weights, [weights[token] for token in sorted(weights)], atol=1e-5)
                for found_vectors in (row.tokens, matrix):
                    np.testing.assert_allclose(found_vectors, vectors, atol=1e-5)


async def test_a_splade_checkpoint_is_served_with_the_prompts_and_weights_of_sparse_encoder(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, tmp_path: Path
) -> None:
    model, directory = unique("splade"), tmp_path / "model"
    reference = SparseEncoder(str(save_masked_lm(tmp_path / "plain")), device="cpu", prompts={"query": "where is "})
    reference.save(str(directory))
    worker = start_worker(kafka, model=directory, served_name=model, dtype="float32")
    texts = ["my card", "the card", "where"]
    async with Client(bootstrap_servers=kafka.bootstrap_servers, model=model) as client:
        await worker.ready()
        for prompt_name in (None, "query"):
            rows = await client.embed_sparse(texts, prompt_name=prompt_name)
            for row, text in zip(rows, texts, strict=True):
                weights = reference.encode(text, prompt_name=prompt_name, convert_to_sparse_tensor=False).numpy()
                np.testing.assert_array_equal(row.ids, np.flatnonzero(weights))
                np.testing.assert_allclose(row.weights, weights[row.ids], atol=1e-5)
        with pytest.raises(UnsupportedTask, match=r"can embed_sparse\. Asked for: 'embed'"):
            await client.embed(texts)


async def test_a_colbert_checkpoint_tells_queries_from_documents_by_their_prompts(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, tmp_path: Path
) -> None:
    model, directory = unique("colbert"), save_pylate(tmp_path)
    worker = start_worker(kafka, model=directory, served_name=model, dtype="float32", device="cpu")
    reference = MultiVectorEncoder(str(directory), device="cpu")
    texts = ["a card. where, my card?", "the card", "my card is lost. " * 6]  # the last one is cut, by its role
    servers = kafka.bootstrap_servers
    async with (
        Client(bootstrap_servers=servers, model=model) as client,
        Client(bootstrap_servers=servers, model=model, tokenizer=directory) as tokenizing,
    ):
        await worker.ready()
        for one in (client, tokenizing):
            for prompt_name, encode in (("query", reference.encode_query), ("document", reference.encode_document)):
                rows = await one.embed_tokens(texts, prompt_name=prompt_name, truncate=True)
                for row, text in zip(rows, texts, strict=True):
                    np.testing.assert_allclose(row, np.asarray(encode(text)), atol=1e-5)


async def test_what_no_reply_can_carry_is_the_error_of_its_sequence_alone(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker
) -> None:
    """A sparse vector is so large once it is computed; vectors of tokens are not computed at all."""
    model = unique("large")
    worker = start_worker(kafka, served_name=model, max_reply_bytes=2000)
    large = list(range(1, 401))  # 3,200 bytes in each task
    async with Client(bootstrap_servers=kafka.bootstrap_servers, model=model) as client:
        await worker.ready()
        for task, said in (
            ("embed_sparse", "The reply would exceed 2,000 bytes: it has 3,"),
            ("embed_tokens", "The vectors of 400 tokens would exceed 2,000 bytes; send at most"),
            ("embed_all", "The vectors of 400 tokens would exceed 2,000 bytes; send at most"),
        ):
            first, refused, last = await client.map(task, ids=[[5], large, [6, 7]])
            assert_same(first, expected(task, [5]))
            assert_same(last, expected(task, [6, 7]))
            assert type(refused) is InvalidRequest
            assert said in refused.message
        [cut] = await client.map("embed_sparse", ids=[large], options=Options(top_k=2, dtype="float16"))
        assert_same(cut, SparseVector(np.array([1, 2], np.uint32), np.array([1, 1], np.float16)))


async def test_a_text_whose_vectors_no_reply_can_carry_does_no_harm_to_those_beside_it(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, tmp_path: Path
) -> None:
    """In records that the worker takes together, and in one call; whoever makes tokens of the texts."""
    model, directory = unique("bge-m3"), save_bge_m3(tmp_path)  # 160 bytes a token
    worker = start_worker(kafka, model=directory, served_name=model, dtype="float32", max_reply_bytes=1024)
    short, long, servers = "card", "my card is lost.", kafka.bootstrap_servers
    async with (
        Client(bootstrap_servers=servers, model=model) as client,
        Client(bootstrap_servers=servers, model=model, tokenizer=directory) as tokenizing,
    ):
        await worker.ready()
        for one in (client, tokenizing):
            for call, task in ((one.embed_tokens, "embed_tokens"), (one.embed_all, "embed_all")):
                asked: Any = [call([text]) for text in (short, long, short)]
                found: list[Any] = list(await asyncio.gather(*asked, return_exceptions=True))
                assert_too_large(found[1])
                first, too_large, last = await one.map(task, [short, long, short])
                assert_too_large(too_large)
                for [row] in (found[0], found[2], [first], [last]):
                    assert_same(row, found[0][0])


def assert_too_large(error: object) -> None:
    assert type(error) is InvalidRequest
    assert "The vectors of 11 tokens would exceed 1,024 bytes; send at most" in error.message
