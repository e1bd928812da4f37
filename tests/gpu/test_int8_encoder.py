"""`--dtype int8` on a GPU: near the CPU in float32, refused where it has no kernels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
import torch

from penstock.engine import load_engine
from penstock.engine.errors import UnsupportedDevice
from penstock.engine.types import Float32Array
from tests.engine.helpers import pack, random_sequences, save_encoder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs Hopper"
    ),
]
SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4}
LENGTHS = (5, 1, 60, 33, 7, 5)


def cosines(rows: Any, expected: Any) -> Float32Array:
    found = [float(a @ b / np.sqrt((a @ a) * (b @ b))) for a, b in zip(rows, expected, strict=True)]
    return np.array(found, np.float32)


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "mpnet", "electra", "albert", "deberta-v2"])
def test_a_model_is_near_float32(tmp_path: Path, family: str) -> None:
    save_encoder(tmp_path, family, **SIZES)
    ours = load_engine(str(tmp_path), device="cuda", dtype="int8")
    exact = load_engine(str(tmp_path), device="cpu", dtype="float32")
    assert ours.info.dtype == "int8"
    batch = pack(random_sequences(LENGTHS))
    expected = exact.run(batch).rows
    for _ in range(3):  # by a captured graph too
        assert cosines(ours.run(batch).rows, expected).min() > 0.98  # of random weights
    many = pack(random_sequences(LENGTHS * 40))
    assert cosines(ours.run(many).rows, exact.run(many).rows).min() > 0.98


def test_a_matrix_that_no_block_divides_stays_in_16_bits(tmp_path: Path) -> None:
    save_encoder(tmp_path, "bert", hidden_size=256, intermediate_size=200, num_attention_heads=4)
    with structlog.testing.capture_logs() as logs:
        ours = load_engine(str(tmp_path), device="cuda", dtype="int8")
    [event] = [event for event in logs if event["event"] == "layers_not_in_int8"]
    assert "200 inputs" in event["reason"]
    batch = pack(random_sequences(LENGTHS))
    exact = load_engine(str(tmp_path), device="cpu", dtype="float32")
    assert cosines(ours.run(batch).rows, exact.run(batch).rows).min() > 0.98


@pytest.mark.parametrize(("family", "missing"), [("modernbert", "pre-norm.*gates"), ("nomic_bert", "gates")])
def test_models_without_kernels_in_integers_are_refused(tmp_path: Path, family: str, missing: str) -> None:
    save_encoder(tmp_path, family, **SIZES)
    with pytest.raises(UnsupportedDevice, match=missing):
        load_engine(str(tmp_path), device="cuda", dtype="int8")
