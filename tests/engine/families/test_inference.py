"""Logits of classifiers of natural language inference, and which checkpoints are taken for such."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.engine import TaskOptions, load_engine
from penstock.engine.types import ENTAIL, entailment_of
from tests.engine.helpers import cpu_engine, edit_json, pack, random_sequences, save_classifier

pytestmark = pytest.mark.slow

LENGTHS = (1, 12, 127, 2)
NAMES = {0: "contradiction", 1: "Entailment", 2: "neutral"}


@pytest.mark.parametrize("config", [{}, {"problem_type": "multi_label_classification"}])
@pytest.mark.parametrize("engine", ["packed", "padded"])
def test_entail_gives_the_logits_and_classify_the_scores(tmp_path: Path, engine: str, config: dict[str, Any]) -> None:
    model = save_classifier(tmp_path, "bert", id2label=NAMES, label2id={name: i for i, name in NAMES.items()}, **config)
    loaded = load_engine(str(tmp_path), engine=engine, dtype="float32", device="cpu")
    assert loaded.info.tasks == {"embed", "classify", ENTAIL}
    sequences = random_sequences(LENGTHS)
    wanted = [TaskOptions(ENTAIL), TaskOptions("classify")] * 2
    rows = loaded.run(pack(sequences, wanted)).rows
    for sequence, options, row in zip(sequences, wanted, rows, strict=True):
        logits = model(input_ids=torch.from_numpy(sequence).long()[None]).logits[0]
        scores = torch.sigmoid(logits) if config else torch.softmax(logits, dim=0)
        expected = logits if options.task == ENTAIL else scores
        np.testing.assert_allclose(row, expected.detach().numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "is_of_inference"),
    [
        ({}, True),
        ({"label2id": None}, True),
        ({"label2id": {}}, False),
        ({"label2id": {"contradiction": 0, "neutral": 1, "Entailment": 2}}, False),
        ({"label2id": {"contradiction": 0, "Entailment": "1", "neutral": 2}}, False),
        ({"label2id": {"contradiction": 0, "Entailment": 1, "entails": 2}}, False),
        ({"label2id": [0, 1, 2]}, False),
        ({"id2label": {"0": "a", "1": "b", "2": "c"}}, False),
        ({"id2label": {"0": "entailment", "1": "ENTAILED", "2": "c"}}, False),
    ],
)
def test_a_checkpoint_whose_entailment_is_not_certain_classifies_without_labels(
    tmp_path: Path, changes: dict[str, Any], is_of_inference: bool
) -> None:
    save_classifier(tmp_path, "bert", id2label=NAMES, label2id={name: i for i, name in NAMES.items()})
    edit_json(tmp_path / "config.json", **changes)
    assert cpu_engine(tmp_path).info.tasks == {"embed", "classify", *([ENTAIL] if is_of_inference else [])}


def test_one_class_alone_is_no_entailment() -> None:
    """There is nothing to score it against."""
    assert entailment_of(["entailment"]) is None
    assert entailment_of(["not_entailment", "ENTAIL"]) == 1
