"""Generation through a real broker and a worker: token for token what transformers generates, each request for itself."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import torch
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from penstock.ops.kafka import KafkaBroker
from penstock.producer import BackendError, Client, Generation, InvalidRequest, UnsupportedTask
from penstock.producer.wire.codec import encode_request
from penstock.producer.wire.headers import CORRELATION_ID, request_headers
from penstock.producer.wire.messages import Options, Request, join_tokens
from penstock.producer.wire.topics import request_topic
from tests.engine.generation.helpers import VOCAB, expected, save_seq2seq, sources

Unique = Callable[[str], str]
StartWorker = Callable[..., Any]
CountRecords = Callable[[KafkaBroker, str], Any]

POISON = VOCAB - 1  # the token whose vector is not a number


def add_tokenizer(directory: Path) -> None:
    """A tokenizer of the words w0, w1, …, whose ids they name."""
    tokenizer = Tokenizer(models.WordLevel({"</s>": 2} | {f"w{i}": i for i in range(VOCAB) if i != 2}, unk_token="w3"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]  # untyped
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]  # untyped
        single="$A </s>", special_tokens=[("</s>", 2)]
    )
    tokenizer.save(str(directory / "tokenizer.json"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A random T5 and its directory. One token's vector is NaN; its logit is that of another, which comes first."""
    directory = tmp_path_factory.mktemp("t5")
    model = save_seq2seq(directory, "t5-gated")
    with torch.no_grad():
        model.shared.weight[POISON] = torch.nan
        model.lm_head.weight[POISON] = model.lm_head.weight[POISON - 1]
    model.save_pretrained(directory)
    add_tokenizer(directory)
    return directory, model


@pytest.mark.timeout(120)
async def test_generated_tokens_are_those_of_transformers(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, checkpoint: tuple[Path, Any], tmp_path: Path
) -> None:
    directory, reference = checkpoint
    model, cache = unique("t5"), tmp_path / "cache.sqlite"
    worker = start_worker(kafka, model=directory, served_name=model, cache_path=cache)
    batch = sources([3, 9, 17, 5], seed=3)
    texts = ["w20 w31 w42", "w55 w56 w57 w58"]
    ways: list[dict[str, Any]] = [{"max_new_tokens": 12}, {"max_new_tokens": 9, "num_beams": 4, "length_penalty": 0.5}]
    async with Client(bootstrap_servers=kafka.bootstrap_servers, model=model, timeout_s=60) as client:
        await worker.ready()
        for options in ways:
            rows, of_texts = await asyncio.gather(client.generate(ids=batch, **options), client.generate(texts, **options))
            for source, row in zip(batch, rows, strict=True):
                assert list(row.tokens) == expected(reference, source, **options)
                assert row.text is None
            for text, row in zip(texts, of_texts, strict=True):
                ids = np.array([*(int(word[1:]) for word in text.split()), 2], np.int32)
                assert list(row.tokens) == expected(reference, ids, **options)
                assert row.text == " ".join(f"w{token}" for token in row.tokens if token != 2)
            assert await client.generate(ids=batch, **options) == rows  # from the cache
    print(worker.tail())
