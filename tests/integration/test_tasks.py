"""Reranking and token classification through a real broker and workers, against sentence-transformers and transformers.

The checkpoints are small and random; what matters is that every score arrives at its pair, every label at its token.
"""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.ops.kafka import KafkaBroker
from penstock.producer import Client, InvalidRequest, TokenClass, TooLong, UnsupportedTask, WrongArgument
from penstock.producer.wire.messages import Options, Request, Text
from tests.engine.helpers import (
    MAX_TOKENS,
    VOCAB,
    save_classifier,
    save_sentence_transformer,
    save_tagger,
    write_json,
)
from tests.engine.rerankers import save_reranker
from tests.integration.conftest import StartWorker, Unique

QUERY = "w1 w7 w30"
DOCUMENTS = ["w2 w2", "w9 w1 w4 w4 w8 w100", "w3", "w7 w30 w1", "w50 w51 w52 w53 w54 w55 w56 w57"]
TEXTS = ["w1 w7 w30", "  w2,  w2 ", "Ünknown 🙂 w9 漢字 w1", "w5", "e\u0301 w4 w4 w4 w4 w4 w4 w8!"]


def add_tokenizer(directory: Path) -> None:
    """A tokenizer that knows the words w0, w1, ... alone."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(VOCAB - 5))]
    (directory / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    settings = {"tokenizer_class": "BertTokenizer", "model_max_length": MAX_TOKENS}
    write_json(directory / "tokenizer_config.json", settings)


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("cross-encoder")
    save_classifier(directory, "bert", num_labels=1)
    add_tokenizer(directory)
    return directory


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tagger")
    save_tagger(directory, "bert", id2label={0: "O", 1: "PER", 2: "LOC"})
    add_tokenizer(directory)
    return directory


def expected_tokens(directory: Path, texts: list[str]) -> list[list[dict[str, Any]]]:
    """The output of transformers' pipeline for each token."""
    from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline

    model = AutoModelForTokenClassification.from_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    tag: Any = pipeline("token-classification", model=model, tokenizer=tokenizer, ignore_labels=[], device="cpu")
    return [tag(text) for text in texts]


def assert_same_tokens(rows: list[list[TokenClass]], expected: list[list[dict[str, Any]]]) -> None:
    for tokens, theirs in zip(rows, expected, strict=True):
        shown = [(token.label, token.start, token.end) for token in tokens]
        assert shown == [(token["entity"], token["start"], token["end"]) for token in theirs]
        scores = [token.score for token in tokens]
        np.testing.assert_allclose(scores, [token["score"] for token in theirs], atol=1e-5)


@pytest.mark.parametrize("include_prompt", [True, False])
async def test_prompts_cuts_and_bytes_of_vectors_are_those_of_sentence_transformers(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, tmp_path: Path, include_prompt: bool
) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.util.quantization import quantize_embeddings

    prompts = {"query": "search : ", "document": "passage : "}
    words = ["search", "passage", ":", "other", *(f"w{i}" for i in range(30))]
    given: dict[str, Any] = {"prompts": prompts, "default_prompt_name": "query", "truncate_dim": 16}
    save_sentence_transformer(tmp_path, words, include_prompt=include_prompt, **given)
    reference: Any = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    ranges = np.vstack([np.full(16, -0.5), np.full(16, 0.5)]).astype(np.float32)
    np.save(tmp_path / "ranges.npy", ranges)
    model, texts = unique("prompted"), ["w1 w2", "w3", "w1 w2 w3 w4"]
    worker = start_worker(
        kafka,
        model=tmp_path / "model",
        served_name=model,
        dtype="float32",
        cache_path=tmp_path / "cache.sqlite",
        int8_ranges=tmp_path / "ranges.npy",
    )
    servers = kafka.bootstrap_servers
    async with (
        Client(bootstrap_servers=servers, model=model, timeout_s=300) as client,
        Client(bootstrap_servers=servers, model=model, timeout_s=300, tokenizer=tmp_path / "model") as tokenizing,
    ):
        await worker.ready()
        ways: list[dict[str, Any]] = [{}, {"prompt_name": "document"}, {"prompt": "other : "}, {"prompt": ""}]
        for asked in ways:
            expected = reference.encode(texts, **asked)
            for one in (client, tokenizing):
                np.testing.assert_allclose(await one.embed(texts, **asked), expected, atol=1e-5)
        whole = await client.embed(texts, dimensions=48)  # after the same ids were cached at 16
        np.testing.assert_allclose(whole, reference.encode(texts, truncate_dim=48), atol=1e-5)
        of_bytes = await client.embed(texts, dtype="int8")  # of float32 vectors that were cached
        np.testing.assert_array_equal(of_bytes, quantize_embeddings(await client.embed(texts), "int8", ranges=ranges))
        wrongs: list[dict[str, Any]] = [
            {"dimensions": 8},
            {"prompt_name": "topic"},
            {"dimensions": 48, "dtype": "int8"},
        ]
        for wrong in wrongs:
            with pytest.raises(InvalidRequest):
                await client.embed(texts, **wrong)


async def test_a_reranker_of_a_decoder_ranks_by_an_instruction(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, tmp_path: Path
) -> None:
    reference = save_reranker(tmp_path)
    model, saved = unique("decoder"), tmp_path / "saved"
    worker = start_worker(kafka, model=saved, served_name=model, dtype="float32", cache_path=tmp_path / "cache.sqlite")
    async with Client(bootstrap_servers=kafka.bootstrap_servers, model=model, timeout_s=300) as client:
        await worker.ready()
        ways: list[dict[str, Any]] = [{}, {"prompt": "find a river"}, {"prompt_name": "none"}]
        for asked in ways:
            ranked = await client.rerank(QUERY, DOCUMENTS, **asked)
            expected = reference.rank(QUERY, DOCUMENTS, batch_size=1, **asked)
            assert [index for index, _ in ranked] == [one["corpus_id"] for one in expected]
            np.testing.assert_allclose([score for _, score in ranked], [one["score"] for one in expected], atol=1e-5)
        with pytest.raises(UnsupportedTask, match="can rerank"):
            await client.embed("w1")


async def test_documents_are_ranked_as_a_cross_encoder_ranks_them(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, cross_encoder: Path, tmp_path: Path
) -> None:
    from sentence_transformers import CrossEncoder

    model = unique("cross-encoder")
    cache = tmp_path / "cache.sqlite"
    worker = start_worker(kafka, model=cross_encoder, served_name=model, dtype="float32", cache_path=cache)
    pairs = [(QUERY, document) for document in DOCUMENTS]
    reference = await asyncio.to_thread(CrossEncoder, str(cross_encoder), device="cpu")
    async with Client(bootstrap_servers=kafka.bootstrap_servers, model=model, timeout_s=300) as client:
        await worker.ready()
        ranked = await client.rerank(QUERY, DOCUMENTS)
        expected = reference.rank(QUERY, DOCUMENTS)
        assert [index for index, _ in ranked] == [one["corpus_id"] for one in expected]
        np.testing.assert_allclose([score for _, score in ranked], [one["score"] for one in expected], atol=1e-5)

        long = ["w3 " * 2 * MAX_TOKENS, "w40 " * 2 * MAX_TOKENS]
        cut = dict(await client.rerank(QUERY, long, truncate=True))
        np.testing.assert_allclose([cut[0], cut[1]], reference.predict([(QUERY, text) for text in long]), atol=1e-5)

        in_order = [row for row in await client.map("rerank", pairs) if isinstance(row, float)]
        np.testing.assert_allclose(in_order, reference.predict(pairs), atol=1e-5)

        # Equal pairs in another task, also with a cache: the sigmoid of the one label, as the pipeline gives it.
        rows = await client.classify(pairs)
        np.testing.assert_allclose([row.score for row in rows], in_order, atol=1e-5)

        unlike: list[Text] = [("w1", "w2"), "w3", ("w1", "w2 " * MAX_TOKENS)]
        mixed = await client.map("rerank", unlike)
        assert isinstance(mixed[0], float)
        assert [type(row) for row in mixed[1:]] == [WrongArgument, TooLong]
        with pytest.raises(InvalidRequest, match="`rerank` needs texts"):
            await client.map("rerank", ids=[[2, 6, 3]])
        with pytest.raises(UnsupportedTask, match=r"can classify or embed or rerank\. Asked for: 'token_classify'"):
            await client.token_classify("w1")


async def test_each_token_has_the_label_and_the_span_that_transformers_gives_it(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, tagger: Path, tmp_path: Path
) -> None:
    model = unique("tagger")
    cache = tmp_path / "cache.sqlite"
    worker = start_worker(kafka, model=tagger, served_name=model, dtype="float32", cache_path=cache)
    expected = await asyncio.to_thread(expected_tokens, tagger, TEXTS)
    servers = kafka.bootstrap_servers
    async with (
        Client(bootstrap_servers=servers, model=model, timeout_s=300) as client,
        Client(bootstrap_servers=servers, model=model, timeout_s=300, tokenizer=tagger) as tokenizing,
    ):
        await worker.ready()
        assert_same_tokens(await client.token_classify(TEXTS), expected)
        assert_same_tokens(await tokenizing.token_classify(TEXTS), expected)

        request = Request(model, "token_classify", text=tuple(TEXTS), options=Options(top_k=0, dtype="float16"))
        async with asyncio.timeout(300):
            while (reply := await client.request(request)).cached < len(TEXTS):
                pass  # replies do not wait for the cache
        assert reply.tokens is not None
        assert reply.tokens.scores.dtype == np.float16
        rows = reply.tokens.rows()
        for tokens, theirs in zip(rows, expected, strict=True):
            assert [token.label for token in tokens] == [token["entity"] for token in theirs]
            assert all(sorted(token.labels) == ["LOC", "O", "PER"] for token in tokens)
            np.testing.assert_allclose([sum(token.scores) for token in tokens], 1.0, atol=2e-3)

        [of_ids] = await client.token_classify(ids=[[2, 6, 12, 35, 3]])  # [CLS] w1 w7 w30 [SEP]
        assert [token.label for token in of_ids[1:-1]] == [token["entity"] for token in expected[0]]
        assert {(token.start, token.end) for token in of_ids} == {(None, None)}

        long = "w8 " * 500
        [cut], [cut_here] = (
            await client.token_classify([long], truncate=True),
            await tokenizing.token_classify([long], truncate=True),
        )
        assert [len(cut), len(cut_here)] == [MAX_TOKENS - 2] * 2
        assert [(token.start, token.end) for token in cut] == [(3 * n, 3 * n + 2) for n in range(MAX_TOKENS - 2)]
        assert cut == cut_here

        [refused] = await client.map("token_classify", [("w1", "w2")])
        assert isinstance(refused, InvalidRequest)
        assert "`texts` item 0 must be a string" in refused.message
        with pytest.raises(UnsupportedTask, match=r"can embed or token_classify\. Asked for: 'rerank'"):
            await client.rerank("w1", ["w2"])
