"""Pages print the answers of all-MiniLM-L6-v2. In bfloat16 they may differ by thousandths."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from penstock.engine import load_engine
from penstock.engine.types import TaskOptions
from penstock.ops.demo.banking77 import HEAD
from tests.engine.helpers import pack

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TOLERANCE = 3e-3
CLASSIFIED = re.compile(r'classify --text "(.+)" --model all-minilm-l6-v2\n label +score\n (\w+) +(\d\.\d+)\n')
COMPARED = re.compile(r"^(\d\.\d{3})  (.+)$", re.MULTILINE)


def answers(minilm: str, texts: Sequence[str], task: str, head: str | None = None) -> tuple[list[Any], Sequence[str]]:
    """Rows, and the names of labels."""
    tokenizer: Any = AutoTokenizer.from_pretrained(minilm)
    engine = load_engine(minilm, dtype="float32", device="cpu", head=head)
    ids = [np.array(tokenizer(text)["input_ids"], np.int32) for text in texts]
    return list(engine.run(pack(ids, TaskOptions(task))).rows), engine.info.labels


@pytest.mark.parametrize("page", ["README.md", "ops/docs/index.md"])
def test_a_class(minilm: str, page: str) -> None:
    (found,) = CLASSIFIED.finditer((ROOT / page).read_text(encoding="utf-8"))
    text, label, score = found.groups()
    (scores,), labels = answers(minilm, [text], "classify", str(HEAD))
    assert labels[int(np.argmax(scores))] == label
    assert scores.max() == pytest.approx(float(score), abs=TOLERANCE)


def test_similarities(minilm: str) -> None:
    page = (ROOT / "ops" / "docs" / "clients.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"node embed\.js localhost.+?```", page, re.DOTALL)
    printed = COMPARED.findall(shown)
    assert len(printed) == 3
    vectors, _ = answers(minilm, [text for _, text in printed], "embed")
    assert [vectors[0] @ one for one in vectors] == pytest.approx([float(one) for one, _ in printed], abs=TOLERANCE)
