"""Results that are not finite, from real weights: they are named, and the others of their batch are right."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from penstock.engine import BatchOutput, EngineLanes, PackedBatch, from_torch, load_engine
from penstock.engine.errors import CheckpointError, NotFinite, UnsupportedCheckpoint, UnsupportedDevice
from penstock.engine.types import TaskOptions
from tests.engine.helpers import (
    BFLOAT16,
    edited_tensors,
    needs_bfloat16,
    pack,
    random_sequences,
    save_classifier,
    save_encoder,
    save_tagger,
)

VOCAB = 5000  # of which the trial of a padded model meets a few hundred tokens
HUGE = 4999  # a token whose embedding is finite, and overflows float32 in the first norm
SEQUENCES = [*random_sequences((5, 1, 64, 5, 100)), np.array([7, HUGE, 8], np.int32), *random_sequences((3, 64), 1)]
BAD = 5

Save = Callable[..., Any]


def make_huge(directory: Path) -> None:
    with edited_tensors(directory) as tensors:
        (words,) = [name for name in tensors if name.endswith("word_embeddings.weight")]
        tensors[words][HUGE] = 3e38


@pytest.mark.parametrize(
    ("engine", "dtype"),
    [("packed", "float32"), pytest.param("packed", "bfloat16", marks=needs_bfloat16), ("padded", "float32")],
)
@pytest.mark.parametrize("save", [save_encoder, save_classifier, save_tagger])
def test_one_sequence_overflows_and_the_others_are_as_without_it(
    tmp_path: Path, save: Save, engine: str, dtype: str
) -> None:
    save(tmp_path, "bert", vocab_size=VOCAB)
    make_huge(tmp_path)
    loaded = load_engine(str(tmp_path), engine=engine, dtype=dtype, device="cpu")
    for task in loaded.info.tasks:
        output = loaded.run(pack(SEQUENCES, TaskOptions(task)))
        assert output.not_finite == (BAD,)
        rest = loaded.run(pack([one for index, one in enumerate(SEQUENCES) if index != BAD], TaskOptions(task)))
        assert rest.not_finite == ()
        tolerance = 0.0 if engine == "packed" else 0.05
        for row, alone in zip([row for index, row in enumerate(output.rows) if index != BAD], rest.rows, strict=True):
            assert np.abs(row - alone).max() <= tolerance


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_each_row_that_is_not_finite_is_named_whatever_its_shape(value: float) -> None:
    rows = [np.zeros(shape, np.float32) for shape in ((3,), (1,), (5, 2), (2, 2))]
    assert BatchOutput(rows, 0.0).not_finite == ()
    for bad in itertools.chain.from_iterable(itertools.combinations(range(4), count) for count in range(1, 5)):
        spoiled = [row.copy() for row in rows]
        for index in bad:
            spoiled[index].flat[-1] = value
        assert BatchOutput(spoiled, 0.0).not_finite == bad


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("index", [0, 3, 6])
def test_rows_that_an_engine_has_in_blocks_are_named_alike(value: float, index: int) -> None:
    blocks = [np.ones((4, 8), np.float32), np.ones((3, 5), np.float32)]
    rows = [*blocks[0], *blocks[1]]
    assert BatchOutput(rows, 0.0, blocks).not_finite == ()
    rows[index][2] = value
    assert BatchOutput(rows, 0.0, blocks).not_finite == (index,)


def test_finite_values_whose_sum_overflows_are_results() -> None:
    assert BatchOutput([np.full(8, 3e38, np.float32)], 0.0).not_finite == ()


async def test_lanes_hand_on_which_rows_are_no_results(tmp_path: Path) -> None:
    save_encoder(tmp_path, "bert", vocab_size=VOCAB)
    make_huge(tmp_path)
    lanes = EngineLanes(load_engine(str(tmp_path), dtype="float32", device="cpu"))
    assert (await lanes.submit(pack(SEQUENCES))).not_finite == (BAD,)
    assert await lanes.close(60.0)


@pytest.mark.parametrize("dtype", ["float32", BFLOAT16])
def test_a_packed_model_names_the_sequences(tmp_path: Path, dtype: str) -> None:
    model = save_encoder(tmp_path, "bert", vocab_size=VOCAB)
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[HUGE] = 3e38
    fast = from_torch(model, dtype=dtype, device="cpu")
    batch: PackedBatch = pack(SEQUENCES)
    ids, bounds = torch.from_numpy(batch.token_ids), torch.from_numpy(batch.cu_seqlens)
    with pytest.raises(NotFinite, match=rf"sequences \[{BAD}\] hold"):
        fast.packed(ids, bounds)
    padded = torch.full((2, 3), 7)
    padded[1, 1] = HUGE
    with pytest.raises(NotFinite, match=r"sequences \[1\] hold"):
        fast(padded)
    assert fast(padded[:1]).isfinite().all()


@pytest.mark.parametrize(
    ("tensor", "value", "dtype"),
    [
        ("encoder.layer.1.output.dense.bias", np.nan, torch.float32),
        ("encoder.layer.0.attention.self.key.weight", np.inf, torch.bfloat16),
        ("embeddings.LayerNorm.weight", -np.inf, torch.float16),
        ("classifier.weight", np.nan, torch.float16),
        ("classifier.bias", np.nan, torch.float8_e5m2),
    ],
)
def test_weights_that_are_not_finite_are_refused_by_name(
    tmp_path: Path, tensor: str, value: float, dtype: torch.dtype
) -> None:
    save_classifier(tmp_path, "bert")
    with edited_tensors(tmp_path) as tensors:
        (name,) = [name for name in tensors if name.endswith(tensor)]
        tensors[name].view(-1)[-1] = value
        tensors[name] = tensors[name].to(dtype)
    engines = ["packed"] if dtype is torch.float8_e5m2 else ["packed", "padded"]  # transformers refuses such files
    for engine in engines:
        with pytest.raises(CheckpointError, match=rf"'{name}' holds values that are not finite"):
            load_engine(str(tmp_path), engine=engine, device="cpu", dtype="float32")


@pytest.mark.parametrize("engine", ["packed", "padded"])
@pytest.mark.parametrize("save", [save_encoder, save_classifier, save_tagger])
def test_a_model_without_any_finite_result_is_refused_though_its_weights_are_finite(
    tmp_path: Path, save: Save, engine: str
) -> None:
    save(tmp_path, "bert")
    with edited_tensors(tmp_path) as tensors:
        (name,) = [name for name in tensors if name.endswith("embeddings.LayerNorm.weight")]
        tensors[name].fill_(3e38)
    with pytest.raises(UnsupportedCheckpoint, match=r"NaN or infinity, though.* in float32: No --dtype"):
        load_engine(str(tmp_path), engine=engine, device="cpu", dtype="float32")


def test_a_head_that_is_not_finite_is_refused_by_name(tmp_path: Path) -> None:
    save_encoder(tmp_path, "bert")
    head = tmp_path / "head"
    weights = {"weight": torch.zeros(2, 48), "bias": torch.tensor([0.0, torch.nan])}
    save_file(weights, head.with_suffix(".safetensors"), metadata={"labels": '["neg", "pos"]'})
    with pytest.raises(CheckpointError, match="'bias' holds values that are not finite"):
        load_engine(str(tmp_path), head=str(head.with_suffix(".safetensors")), device="cpu")


@needs_bfloat16
@pytest.mark.parametrize("engine", ["packed", "padded"])
def test_weights_that_overflow_in_the_chosen_dtype_are_refused_with_another(tmp_path: Path, engine: str) -> None:
    save_encoder(tmp_path, "bert")
    with edited_tensors(tmp_path) as tensors:
        tensors["encoder.layer.1.output.dense.weight"][0, 0] = -torch.finfo(torch.float32).max
    with pytest.raises(
        UnsupportedDevice, match=r"'encoder\.layer\.1\.output\.dense\.weight'.*bfloat16.*--dtype float32"
    ):
        load_engine(str(tmp_path), engine=engine, device="cpu", dtype="bfloat16")


def test_the_packed_model_of_the_library_refuses_them_too(tmp_path: Path) -> None:
    model = save_encoder(tmp_path, "bert")
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[3, 0] = torch.nan
    with pytest.raises(CheckpointError, match=r"'embeddings\.word_embeddings\.weight' holds"):
        from_torch(model, device="cpu")


@needs_bfloat16
def test_the_packed_model_of_the_library_names_another_dtype_for_weights_that_overflow(tmp_path: Path) -> None:
    model = save_encoder(tmp_path, "bert")
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[3, 0] = torch.finfo(torch.float32).max
    with pytest.raises(UnsupportedDevice, match="--dtype float32"):
        from_torch(model, dtype="bfloat16", device="cpu")
