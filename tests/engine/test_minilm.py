"""The published all-MiniLM-L6-v2, whose weights the demo's package carries."""

import hashlib
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

from penstock.engine import load_engine
from penstock.engine.model.checkpoint import revision_of
from penstock.engine.types import Float32Array, Int32Array
from tests.engine.helpers import needs_bfloat16, needs_vnni, pack

pytestmark = pytest.mark.slow

# As published at huggingface.co/sentence-transformers/all-MiniLM-L6-v2.
PUBLISHED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

SUBJECTS = (
    "my card",
    "a transfer",
    "the exchange rate",
    "my PIN",
    "a top-up",
    "cash",
    "the app",
    "a refund",
    "my account",
)
QUESTIONS = (
    "Where is {}?",
    "How do I cancel {}",
    "I still do not see {} after a week, can you tell me what I should do now?",
    "Why was I charged for {} when I was told in the branch that it would not cost me anything at all this month?",
    "{} pending",
    "What is the limit on {}, and can it be raised from abroad?",
    "{}",
    "Please explain {} fees (again!); 3 of them look wrong: £1.20, €5 & $7.99.",
    "ok so {} was declined twice today while I was travelling between Zürich and Kraków...",
    "Is {} safe?",
    "help with {}",
)
TEXTS = [question.format(subject) for question in QUESTIONS for subject in SUBJECTS]


@pytest.fixture(scope="module")
def token_ids(minilm: str) -> list[Int32Array]:
    tokenizer = Tokenizer.from_file(f"{minilm}/tokenizer.json")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return [np.array(encoding.ids, dtype=np.int32) for encoding in tokenizer.encode_batch(TEXTS)]


@pytest.fixture(scope="module")
def reference(minilm: str) -> Float32Array:
    """sentence-transformers' embeddings in float32."""
    return np.asarray(SentenceTransformer(minilm, device="cpu").encode(TEXTS), dtype=np.float32)


def test_the_package_carries_the_published_weights(minilm: str) -> None:
    digest = hashlib.sha256((Path(minilm) / "model.safetensors").read_bytes()).hexdigest()
    assert digest == PUBLISHED_SHA256


def test_float32_equals_sentence_transformers(
    minilm: str, token_ids: list[Int32Array], reference: Float32Array
) -> None:
    rows = np.stack(load_engine(minilm, dtype="float32").run(pack(token_ids)).rows)
    assert (rows * reference).sum(axis=1).min() > 0.99999
    assert np.abs(rows - reference).max() < 1e-6


@needs_bfloat16
def test_bfloat16_stays_within_a_ten_thousandth(
    minilm: str, token_ids: list[Int32Array], reference: Float32Array
) -> None:
    rows = np.stack(load_engine(minilm, dtype="bfloat16").run(pack(token_ids)).rows)
    assert (rows * reference).sum(axis=1).min() >= 0.9999


@needs_vnni
def test_int8_stays_within_a_thousandth_and_keeps_neighbours(
    minilm: str, token_ids: list[Int32Array], reference: Float32Array
) -> None:
    rows = np.stack(load_engine(minilm, dtype="int8").run(pack(token_ids)).rows)
    assert (rows * reference).sum(axis=1).min() >= 0.999
    nearest = [np.argsort(-(vectors @ vectors.T), axis=1)[:, 1:11] for vectors in (rows, reference)]
    assert np.mean([len({*mine} & {*theirs}) for mine, theirs in zip(*nearest, strict=True)]) >= 9.5


def test_modules_and_limits_are_read(minilm: str) -> None:
    engine = load_engine(minilm, name="minilm", dtype="float32")
    info = engine.info
    assert (info.name, info.dim, info.max_tokens, info.vocab_size) == ("minilm", 384, 256, 30_522)
    assert (engine.directory / "tokenizer.json").is_file()


def test_the_revision_is_repeatable_and_reads_each_file_once(minilm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    file_digest = hashlib.file_digest

    def noted(file: BufferedReader, name: str) -> Any:
        read.append(file.name)
        return file_digest(file, name)

    monkeypatch.setattr(hashlib, "file_digest", noted)
    assert revision_of(Path(minilm)) == revision_of(Path(minilm))
    assert len(read) == 2 * len(set(read)) > 2
