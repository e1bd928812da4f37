"""float16 overflows on a GPU: in one sequence, which fails alone, or in the weights, which are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.engine import from_torch, load_engine
from penstock.engine.errors import NotFinite, UnsupportedDevice
from penstock.engine.types import TaskOptions
from tests.engine.helpers import pack, random_sequences, save_classifier, save_encoder, save_tagger

pytestmark = pytest.mark.gpu

WIDTH = 128
VOCAB = 5000  # of which the trial of a padded model meets a few hundred tokens
HUGE = 4999
SEQUENCES = [*random_sequences((5, 1, 64, 100)), np.full(3, HUGE, np.int32), *random_sequences((3, 64), 1)]
BAD = 4


def spoil(tensors: dict[str, torch.Tensor]) -> None:
    """Let a product of the first layer exceed 65,504 for HUGE: its weights are the direction of that token's norm."""

    def named(end: str) -> str:
        (name,) = [name for name in tensors if name.endswith(end)]
        return name

    direction = torch.ones(WIDTH)
    direction[::2] = -1
    tensors[named("word_embeddings.weight")][HUGE] = 1000 * direction
    for end in ("embeddings.LayerNorm.weight", "layer.0.attention.output.LayerNorm.weight"):
        tensors[named(end)].fill_(1)
    tensors[named("layer.0.attention.output.dense.weight")].zero_()
    tensors[named("layer.0.intermediate.dense.weight")][0] = 1000 * direction


def spoil_file(directory: Path) -> None:
    file = directory / "model.safetensors"
    tensors = load_file(file)
    spoil(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.mark.parametrize("engine", ["packed", "padded"])
@pytest.mark.parametrize("save", [save_encoder, save_classifier, save_tagger])
def test_a_sequence_that_overflows_float16_fails_alone(tmp_path: Path, save: Any, engine: str) -> None:
    save(tmp_path, "bert", hidden_size=WIDTH, vocab_size=VOCAB)
    spoil_file(tmp_path)
    loaded = load_engine(str(tmp_path), engine=engine, device="cuda", dtype="float16")
    wide = load_engine(str(tmp_path), engine=engine, device="cuda", dtype="bfloat16")
    for task in loaded.info.tasks:
        batch = pack(SEQUENCES, TaskOptions(task))
        for _ in range(3):  # by a captured graph too
            output = loaded.run(batch)
            assert output.not_finite == (BAD,)
        rest = loaded.run(pack([one for index, one in enumerate(SEQUENCES) if index != BAD], TaskOptions(task)))
        assert rest.not_finite == ()
        others = [row for index, row in enumerate(output.rows) if index != BAD]
        for row, alone in zip(others, rest.rows, strict=True):
            assert np.abs(row - alone).max() <= 0.02 * max(1.0, float(np.abs(alone).max()))
        assert wide.run(batch).not_finite == ()


def test_a_packed_model_names_the_sequence(tmp_path: Path) -> None:
    model = save_encoder(tmp_path, "bert", hidden_size=WIDTH, vocab_size=VOCAB)
    with torch.no_grad():
        spoil(model.state_dict())  # in place
    batch = pack(SEQUENCES)
    fast = from_torch(model, device="cuda", dtype="float16")
    with pytest.raises(NotFinite, match=rf"sequences \[{BAD}\] hold"):
        fast.packed(torch.from_numpy(batch.token_ids), torch.from_numpy(batch.cu_seqlens))


@pytest.mark.parametrize("engine", ["packed", "padded"])
def test_weights_that_overflow_float16_are_refused_by_name(tmp_path: Path, engine: str) -> None:
    save_encoder(tmp_path, "bert", hidden_size=WIDTH)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    tensors["encoder.layer.1.output.dense.weight"][0, 0] = 1e5
    save_file(tensors, file, metadata={"format": "pt"})
    wanted = r"'encoder\.layer\.1\.output\.dense\.weight'.*float16.*--dtype bfloat16"
    with pytest.raises(UnsupportedDevice, match=wanted):
        load_engine(str(tmp_path), engine=engine, device="cuda", dtype="float16")
    assert load_engine(str(tmp_path), engine=engine, device="cuda", dtype="bfloat16").info.dtype == "bfloat16"
