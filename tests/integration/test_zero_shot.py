"""Labels of requests through a real broker and workers, against transformers' zero-shot-classification.

The checkpoints are small and random: what matters is that every score arrives at its text and its label.
"""

import asyncio
import csv
import itertools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.ops.kafka import KafkaBroker
from penstock.producer import Client, InvalidRequest, TooLong, UnsupportedTask
from penstock.producer.wire.messages import Classification, Options, Request, Text
from tests.engine.helpers import save_classifier, save_encoder
from tests.integration.conftest import StartWorker, Unique
from tests.producer.tokenizer_makers import MAKERS, edit

LABELS = ["card", "the étude", "Where"]
TEXTS = ["where is my card", "the étude card a card", "Ünknown 🙂 a b c", "my"]
TEMPLATE = "a card is the {}"
MAX_TOKENS = 60
LONG = "card where the " * MAX_TOKENS

Rows = list[Classification]


def save_inference_model(directory: Path, family: str, names: Sequence[str], **config: Any) -> None:
    """A random classifier with these classes, and a tokenizer of a few words and all letters."""
    MAKERS[family](directory)
    edit(directory, model_max_length=MAX_TOKENS)
    id2label = dict(enumerate(names))
    label2id = {name: index for index, name in id2label.items()}
    save_classifier(directory, family, vocab_size=300, id2label=id2label, label2id=label2id, **config)


def zero_shot(directory: Path) -> Callable[..., Any]:
    """transformers' pipeline, of one text or several."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

    model = AutoModelForSequenceClassification.from_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    made: Any = pipeline("zero-shot-classification", model=model, tokenizer=tokenizer, device="cpu")
    return made  # type: ignore[no-any-return]  # untyped


def assert_same(rows: Rows, expected: Sequence[dict[str, Any]]) -> None:
    assert len(rows) == len(expected)
    for row, theirs in zip(rows, expected, strict=True):
        assert list(row.labels) == theirs["labels"]
        np.testing.assert_allclose(row.scores, theirs["scores"], atol=1e-5)


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("bert", ("entailment", "neutral", "contradiction")),
        ("bert", ("NEUTRAL", "CONTRADICTION", "ENTAILMENT")),
        ("deberta-v2", ("contradiction", "Entailment", "neutral")),
        ("roberta", ("entailment", "not_entailment")),
        ("bart", ("contradiction", "neutral", "entailment")),
    ],
)
async def test_scores_are_those_of_transformers(
    kafka: KafkaBroker,
    unique: Unique,
    start_worker: StartWorker,
    tmp_path: Path,
    family: str,
    names: Sequence[str],
) -> None:
    directory, model = tmp_path / "model", unique("nli")
    directory.mkdir()
    save_inference_model(directory, family, names)
    cache = tmp_path / "cache.sqlite"
    worker = start_worker(kafka, model=directory, served_name=model, dtype="float32", cache_path=cache)
    reference = await asyncio.to_thread(zero_shot, directory)
    servers = kafka.bootstrap_servers
    async with (
        Client(bootstrap_servers=servers, model=model, timeout_s=300) as client,
        Client(bootstrap_servers=servers, model=model, timeout_s=300, tokenizer=directory) as tokenizing,
    ):
        await worker.ready()
        for multi_label in (False, True):
            asked: dict[str, Any] = {"multi_label": multi_label}
            expected = reference(TEXTS, LABELS, **asked)
            for one in (client, tokenizing):
                assert_same(await one.classify(TEXTS, labels=LABELS, top_k=0, **asked), expected)
            cut = await client.classify([LONG, TEXTS[0]], labels=LABELS, top_k=0, truncate=True, **asked)
            assert_same(cut, reference([LONG, TEXTS[0]], LABELS, **asked))
        in_words = await client.classify(TEXTS, labels=LABELS, template=TEMPLATE, top_k=0)
        assert_same(in_words, reference(TEXTS, LABELS, hypothesis_template=TEMPLATE))
        alone = await client.classify(TEXTS[0], labels=LABELS[:1])
        assert_same(alone, [reference(TEXTS[0], LABELS[:1])])
        [best] = await client.classify(TEXTS[0], labels=LABELS)
        assert best.labels == (reference(TEXTS[0], LABELS)["labels"][0],)

        request = Request(model, "classify", text=tuple(TEXTS), options=Options(labels=tuple(LABELS), top_k=0))
        async with asyncio.timeout(300):
            while (reply := await client.request(request)).cached < len(TEXTS) * len(LABELS):
                pass  # replies do not wait for the cache
        assert reply.classes is not None
        assert_same(list(reply.classes), reference(TEXTS, LABELS))

        # The same pair, without labels: the scores of the model's own classes, from no cache of logits.
        [own] = await client.classify([(TEXTS[0], f"This example is {LABELS[0]}.")], top_k=0)
        assert sorted(own.labels) == sorted(names)
        assert sum(own.scores) == pytest.approx(1.0, abs=1e-5)


async def test_many_labels_and_texts_and_those_that_are_refused(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, tmp_path: Path
) -> None:
    save_inference_model(tmp_path, "bert", ("entailment", "neutral", "contradiction"))
    model = unique("nli")
    worker = start_worker(kafka, model=tmp_path, served_name=model, dtype="float32", max_sequences=1024)
    reference = await asyncio.to_thread(zero_shot, tmp_path)
    async with Client(bootstrap_servers=kafka.bootstrap_servers, model=model, timeout_s=300) as client:
        await worker.ready()
        thousand = [" ".join(letters) for letters in itertools.product("abcdefghij", repeat=3)]
        [row] = await client.classify(TEXTS[:1], labels=thousand, top_k=0)
        expected = await asyncio.to_thread(reference, TEXTS[0], thousand)
        scores = dict(zip(expected["labels"], expected["scores"], strict=True))
        np.testing.assert_allclose(row.scores, [scores[label] for label in row.labels], atol=1e-5)
        with pytest.raises(InvalidRequest, match=r"at most 1024 sequences, one for each text and label\. Given: 1025"):
            await client.classify(TEXTS[:1], labels=[*thousand, *map(str, range(25))])

        many = [f"{text} {letters}" for letters in thousand[::25] for text in TEXTS]
        streamed = client.map_rows("classify", many, options=Options(labels=tuple(LABELS)))
        found = [(text, row) async for text, row in streamed]
        assert [text for text, _ in found] == many
        assert [row for _, row in found] == await client.classify(many, labels=LABELS)

        await assert_file_is_answered(tmp_path, model, kafka.bootstrap_servers, many, reference)

        unlike: list[Text] = [TEXTS[0], LONG, "", ("a", "b")]
        rows = await client.map("classify", unlike, options=Options(labels=tuple(LABELS)))
        assert isinstance(rows[0], Classification)
        assert [(type(row).__name__, str(row)) for row in rows[1:]] == [
            ("TooLong", "Text 1: A text and a label's hypothesis must have at most 60 tokens. Given: 198"),
            ("EmptyInput", "Text 2 is empty."),
            ("WrongArgument", "`texts` item 3 must be a string. Given: tuple"),
        ]
        with pytest.raises(TooLong):  # of the hypothesis alone, which is not cut
            await client.classify("a", labels=[LONG], truncate=True)
        for wrong in ([], ["card", "card"], ["card", " "], "card", [1], None):
            with pytest.raises(InvalidRequest, match="`labels`"):
                await client.classify(TEXTS, labels=wrong, multi_label=True)  # type: ignore[arg-type]  # wrong on purpose


async def assert_file_is_answered(
    directory: Path, model: str, servers: str, texts: Sequence[str], reference: Callable[..., Any]
) -> None:
    """`penstock classify IN OUT --labels …` as a user runs it."""
    source, target = directory / "in.csv", directory / "out.csv"
    with source.open("w", newline="") as file:
        csv.writer(file).writerows([["message"], *[[text] for text in texts]])
    options = ("--labels", ", ".join(LABELS), "--template", TEMPLATE, "--multi-label", "--top-k", "0")
    command = ("classify", source, target, "--column", "message", "--model", model, "--bootstrap-servers", servers)
    run = "from penstock.ops.cli.main import main; main()"
    job = await asyncio.create_subprocess_exec(sys.executable, "-c", run, *map(str, command), *options)
    assert await job.wait() == 0
    with target.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["message"] for row in rows] == texts
    expected = await asyncio.to_thread(reference, texts, LABELS, hypothesis_template=TEMPLATE, multi_label=True)
    found = [Classification(tuple(json.loads(row["labels"])), tuple(json.loads(row["scores"]))) for row in rows]
    assert_same(found, expected)
    assert [(row["label"], float(row["score"])) for row in rows] == [(one.label, one.score) for one in found]


@pytest.mark.parametrize("what", ["classifier", "encoder"])
async def test_a_model_of_something_else_says_what_would_have_to_be_in_its_files(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, tmp_path: Path, what: str
) -> None:
    MAKERS["bert"](tmp_path)
    if what == "classifier":
        save_classifier(tmp_path, "bert", num_labels=3)
    else:
        save_encoder(tmp_path, "bert")
    model = unique(what)
    worker = start_worker(kafka, model=tmp_path, served_name=model, dtype="float32")
    reason = {
        "classifier": r"begins with 'entail' in id2label of config\.json.* has: LABEL_0, LABEL_1, LABEL_2",
        "encoder": r"can embed\. Asked for: 'classify'",
    }[what]
    async with Client(bootstrap_servers=kafka.bootstrap_servers, model=model, timeout_s=300) as client:
        await worker.ready()
        with pytest.raises(UnsupportedTask, match=reason):
            await client.classify(TEXTS, labels=LABELS)
