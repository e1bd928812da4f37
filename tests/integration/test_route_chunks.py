"""Long texts in routes: their chunks, with the vectors that sentence-transformers has for exactly these."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.ops.kafka import KafkaBroker
from tests.engine.helpers import save_sentence_transformer
from tests.integration.conftest import StartWorker, Unique, letters_of
from tests.integration.test_routes import WORDS, Sent, make_topic, read, send


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("chunked")
    save_sentence_transformer(directory, WORDS, prompts={"document": "w1 w2: "}, default_prompt_name="document")
    return directory / "model"


def sentences(count: int) -> str:
    """Of one to fourteen words, some with what takes more than one byte."""
    begun = "w3 w4 é👩‍👩 "
    ends = [" ".join([f"w{(n * k) % 30}" for k in range(1 + n % 14)]) for n in range(count)]
    return "".join([f"{begun[: n % 10]} {end}. " for n, end in enumerate(ends)])


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_chunks_of_long_texts_have_their_places_and_vectors(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, model: Path, delivery: str
) -> None:
    from sentence_transformers import SentenceTransformer

    source, output = await make_topic(kafka, unique("papers")), unique("chunked")
    texts = [sentences(200), "w1 w2.", "w5" * 200, sentences(2000), " ", ""]  # the fourth is longer than 64 KiB
    values = [json.dumps({"n": n, "text": text}).encode() for n, text in enumerate(texts)]
    assert len(values[3]) > 1 << 16
    await send(kafka, source, [Sent(b"same", value) for value in values])
    worker = start_worker(
        kafka,
        model=model,
        dtype="float32",
        served_name=unique("chunked"),
        delivery=delivery,
        input_topic=source,
        output_topic=output,
        text="text",
        chunk_tokens=50,
        chunk_overlap=10,
    )
    enriched = [json.loads(one.value) for one in await read(worker, kafka, output, 6, isolation_level="read_committed")]
    await worker.stop()
    assert [one["n"] for one in enriched] == list(range(6))
    reference: Any = SentenceTransformer(str(model), device="cpu")
    for text, record in zip(texts, enriched, strict=True):
        chunks = [text[one["start"] : one["end"]] for one in record["result"]]
        assert max(len(ids) for ids in reference.tokenizer([f"w1 w2: {chunk}" for chunk in chunks])["input_ids"]) <= 50
        vectors = [one["embedding"] for one in record["result"]]
        np.testing.assert_allclose(vectors, reference.encode(chunks), atol=1e-5)
    numbers = [len(one["result"]) for one in enriched]
    assert numbers[0] > 20
    assert numbers[3] > 200
    assert [numbers[1], numbers[2], numbers[4], numbers[5]] == [1, 1, 1, 1]
    for one, following in itertools.pairwise(enriched[0]["result"]):
        assert one["start"] < following["start"] <= one["end"] < following["end"]
        assert texts[0][: one["end"]].endswith(".")


async def test_a_text_of_more_chunks_than_a_record_may_have_becomes_a_dead_letter(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, model: Path
) -> None:
    source, output = await make_topic(kafka, unique("papers")), unique("chunked")
    records = [Sent(b"many", b"w1 " * 500), Sent(b"few", b"w1 " * 50), Sent(b"none", None)]
    await send(kafka, source, records)
    worker = start_worker(
        kafka,
        model=model,
        served_name=unique("chunked"),
        input_topic=source,
        output_topic=output,
        record_format="text",
        chunk_tokens=20,
        max_sequences=8,
        task="embed",
    )
    found = {one.key: one.value for one in await read(worker, kafka, output, 2)}
    assert found[b"none"] is None
    assert len(json.loads(found[b"few"])["result"]) == 4
    letters = await letters_of(kafka, source, 1)
    await worker.stop()
    assert [(letter.record.key, letter.code, letter.record.value) for letter in letters] == [
        (b"many", "invalid_request", records[0].value)
    ]
