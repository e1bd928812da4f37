"""Routes of every task but embed and classify, against what transformers and sentence-transformers answer."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from penstock.ops.kafka import KafkaBroker
from tests.engine.generation.helpers import expected, save_seq2seq
from tests.engine.helpers import save_classifier, save_tagger
from tests.integration.conftest import StartWorker, Unique
from tests.integration.test_generation import add_tokenizer as add_word_tokenizer
from tests.integration.test_routes import Sent, make_topic, read, send
from tests.integration.test_routes_avro import Orders
from tests.integration.test_tasks import QUERY, TEXTS, add_tokenizer, expected_tokens

TEXT = {
    "type": "record",
    "name": "Text",
    "fields": [{"name": "n", "type": "int"}, {"name": "text", "type": "string"}],
}


class Enriched:
    """The output of a route into which texts go, one a record. With a registry the records are Avro."""

    def __init__(self, kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, registry_url: str | None) -> None:
        self._kafka, self._unique, self._start = kafka, unique, start_worker
        self._registry_url = registry_url

    async def results(self, model: Path, texts: Sequence[str], **settings: Any) -> list[Any]:
        """The result of each text. All else of the records is as it was."""
        source, output = await make_topic(self._kafka, self._unique("texts")), self._unique("enriched")
        documents = [{"n": n, "text": text} for n, text in enumerate(texts)]
        if self._registry_url is None:
            return await self._sent(source, output, documents, settings | {"model": model})
        with SchemaRegistryClient({"url": self._registry_url}) as client:
            of_registry = {"model": model, "record_format": "avro", "schema_registry_url": self._registry_url}
            orders = Orders(client, source, output, TEXT)
            return await self._sent(source, output, documents, settings | of_registry, orders)

    async def _sent(
        self,
        source: str,
        output: str,
        documents: Sequence[dict[str, Any]],
        settings: dict[str, Any],
        orders: Orders | None = None,
    ) -> list[Any]:
        def written(one: dict[str, Any]) -> bytes:
            return json.dumps(one, ensure_ascii=False).encode() if orders is None else orders.written(**one)

        await send(self._kafka, source, [Sent(b"%d" % one["n"], written(one)) for one in documents])
        worker = self._start(
            self._kafka,
            served_name=self._unique("routed"),
            dtype="float32",
            input_topic=source,
            output_topic=output,
            text="text",
            **settings,
        )
        found = {record.key: record.value for record in await read(worker, self._kafka, output, len(documents))}
        await worker.stop()
        enriched = [(json.loads if orders is None else orders.read)(found[b"%d" % one["n"]]) for one in documents]
        results = [one.pop("result") for one in enriched]
        assert enriched == documents
        return results


@pytest.fixture(params=["json", "avro"])
def enriched(kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, request: pytest.FixtureRequest) -> Enriched:
    url = request.getfixturevalue("registry_url") if request.param == "avro" else None
    return Enriched(kafka, unique, start_worker, url)


async def test_texts_are_scored_against_the_query_as_a_cross_encoder_scores_them(
    enriched: Enriched, tmp_path: Path
) -> None:
    from sentence_transformers import CrossEncoder

    save_classifier(tmp_path, "bert", num_labels=1)
    add_tokenizer(tmp_path)
    found = await enriched.results(tmp_path, TEXTS, task="rerank", query=QUERY)
    reference = await asyncio.to_thread(CrossEncoder, str(tmp_path), device="cpu")
    np.testing.assert_allclose(found, reference.predict([(QUERY, text) for text in TEXTS]), atol=1e-5)


async def test_tokens_have_the_labels_and_spans_that_transformers_gives_them(
    enriched: Enriched, tmp_path: Path
) -> None:
    save_tagger(tmp_path, "bert", id2label={0: "O", 1: "PER", 2: "LOC"})
    add_tokenizer(tmp_path)
    found = await enriched.results(tmp_path, TEXTS, task="token_classify")
    for tokens, theirs in zip(found, await asyncio.to_thread(expected_tokens, tmp_path, TEXTS), strict=True):
        shown = [(token["label"], token["start"], token["end"]) for token in tokens]
        assert shown == [(token["entity"], token["start"], token["end"]) for token in theirs]
        np.testing.assert_allclose(
            [token["score"] for token in tokens], [token["score"] for token in theirs], atol=1e-5
        )


async def test_texts_are_generated_as_transformers_generates_them(enriched: Enriched, tmp_path: Path) -> None:
    reference = save_seq2seq(tmp_path, "t5-gated")
    add_word_tokenizer(tmp_path)
    texts, options = ["w20 w31 w42", "w55 w56 w57 w58", "w9"], {"max_new_tokens": 9, "num_beams": 4}
    asked = json.dumps({"generation": options})
    found = await enriched.results(tmp_path, texts, task="generate", request_options=asked)
    for text, row in zip(texts, found, strict=True):
        ids = np.array([*(int(word[1:]) for word in text.split()), 2], np.int32)
        assert row["tokens"] == expected(reference, ids, **options)
        assert row["text"] == " ".join(f"w{token}" for token in row["tokens"] if token != 2)
        assert row["finish"] in ("stop", "length")
