"""The packed forward against transformers and sentence-transformers in float32, row by row."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.activations import ACT2CLS

from penstock.engine import TaskOptions, families
from penstock.engine.cpu.engine import CpuEngine
from tests.engine.helpers import (
    CLASSIFIERS,
    FAMILIES,
    MAX_TOKENS,
    VOCAB,
    cpu_engine,
    pack,
    random_sequences,
    reference_hidden,
    save_classifier,
    save_encoder,
)

pytestmark = pytest.mark.slow

LENGTHS = (64, 1, 2, 17, 2, MAX_TOKENS, 127, 33, 1, 16, 128, 17, 65, 129)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> CpuEngine:
    directory = tmp_path_factory.mktemp("bert")
    save_encoder(directory, "bert")
    return cpu_engine(directory)


def test_every_family_has_a_small_configuration_for_these_tests() -> None:
    assert set(FAMILIES) == set(families.FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_info_describes_the_checkpoint(tmp_path: Path, family: str) -> None:
    save_encoder(tmp_path, family)
    info = cpu_engine(tmp_path).info
    assert (info.vocab_size, info.max_tokens, info.dim) == (VOCAB, MAX_TOKENS, 48)
    assert (info.tasks, info.labels, info.dtype, info.device) == (frozenset({"embed"}), (), "float32", "cpu")


@pytest.mark.parametrize("activation", sorted(set(ACT2CLS) - {"laplace", "prelu", "sqrtsoftplus", "xielu"}))
def test_activations(tmp_path: Path, activation: str) -> None:
    model = save_encoder(tmp_path, "bert", hidden_act=activation)
    sequences = random_sequences((5, 40))
    output = cpu_engine(tmp_path).run(pack(sequences))
    assert max_error(output.rows, [reference_hidden(model, s).mean(axis=0) for s in sequences]) <= 1e-5


def test_token_types_of_pairs(tmp_path: Path) -> None:
    model = save_encoder(tmp_path, "bert")
    sequences = random_sequences((9, 30, 9))
    types = [np.arange(len(s), dtype=np.int32) // 5 % 2 for s in sequences]
    output = cpu_engine(tmp_path).run(pack(sequences, types=types))
    expected = [reference_hidden(model, s, t).mean(axis=0) for s, t in zip(sequences, types, strict=True)]
    assert max_error(output.rows, expected) <= 1e-5


@pytest.mark.parametrize("family", CLASSIFIERS)
@pytest.mark.parametrize(
    ("problem_type", "scores"),
    [
        ("single_label_classification", lambda logits: torch.softmax(logits, dim=-1)),
        ("multi_label_classification", torch.sigmoid),
        ("regression", lambda logits: logits),
    ],
)
def test_sequence_classification(tmp_path: Path, family: str, problem_type: str, scores: Any) -> None:
    id2label = {0: "refund", 1: "card", 2: "other"}
    model = save_classifier(tmp_path, family, id2label=id2label, problem_type=problem_type)
    engine = cpu_engine(tmp_path)
    sequences = random_sequences((1, 12, 80, 12))
    output = engine.run(pack(sequences, TaskOptions("classify")))
    with torch.no_grad():
        expected = [scores(model(input_ids=torch.from_numpy(s)[None].long()).logits[0]).numpy() for s in sequences]
    assert max_error(output.rows, expected) <= 1e-5
    assert engine.info.labels == ("refund", "card", "other")
    assert engine.info.tasks == {"embed", "classify"}


def test_headed_checkpoints_embed_too(tmp_path: Path) -> None:
    model = save_classifier(tmp_path, "bert")
    sequences = random_sequences((7, 3))
    output = cpu_engine(tmp_path).run(pack(sequences))
    assert max_error(output.rows, [reference_hidden(model.bert, s).mean(axis=0) for s in sequences]) <= 1e-5


def test_options_differ_within_a_batch(bert: CpuEngine) -> None:
    sequences = random_sequences((9, 3, 9, 20, 1))
    wanted = [TaskOptions("embed", pooling=p, normalize=n) for p, n in zip(
        ("cls", None, "max", "cls", "last"), (True, None, False, True, None), strict=True
    )]  # fmt: skip
    mixed = bert.run(pack(sequences, wanted)).rows
    alone = [bert.run(pack([s], o)).rows[0] for s, o in zip(sequences, wanted, strict=True)]
    assert all(map(np.array_equal, mixed, alone))
    assert np.linalg.norm(mixed[0]) == pytest.approx(1.0, abs=1e-6)
    assert np.linalg.norm(mixed[2]) > 1.1


def test_an_unknown_pooling_or_task_is_an_error(bert: CpuEngine) -> None:
    sequences = random_sequences((3,))
    with pytest.raises(ValueError, match="pooling 'median'"):
        bert.run(pack(sequences, TaskOptions("embed", pooling="median")))
    with pytest.raises(ValueError, match="task 'classify'"):
        bert.run(pack(sequences, TaskOptions("classify")))


def max_error(rows: Any, expected: Any) -> float:
    """Largest absolute difference over all rows; their shapes must agree."""
    assert [row.shape for row in rows] == [row.shape for row in expected]
    assert all(row.dtype == np.float32 for row in rows)
    return max(float(np.abs(row - want).max()) for row, want in zip(rows, expected, strict=True))
