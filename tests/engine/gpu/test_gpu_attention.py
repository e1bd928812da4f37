"""Rotary positions on a GPU, up to the attention kernel itself: arithmetic, and what is done once a batch."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.modernbert.modeling_modernbert import apply_rotary_pos_emb

from penstock.engine.families import family_of
from penstock.engine.gpu import attention as module
from penstock.engine.gpu.attention import AttentionTables, Rotations, attend, rotated
from penstock.engine.gpu.choice import AttentionKernel
from penstock.engine.gpu.inputs import Inputs, describe, exact_shape, views
from penstock.engine.gpu.ops import prepare_for_gpu
from penstock.engine.model.checkpoint import read_checkpoint
from penstock.engine.model.weights import EncoderWeights, RotaryAttention
from tests.engine.helpers import pack, random_sequences, save_encoder

CPU = torch.device("cpu")
HALVES = (torch.float16, torch.bfloat16)


@pytest.fixture
def weights(tmp_path: Path) -> EncoderWeights:
    save_encoder(tmp_path, "modernbert", hidden_size=128)
    checkpoint = read_checkpoint(tmp_path)
    return family_of(checkpoint).encoder(checkpoint)


@pytest.fixture
def inputs() -> Inputs:
    batch = pack(random_sequences((9, 100, 1, 64)))
    shape = exact_shape(batch, AttentionKernel.FLASH)
    values = torch.empty(shape.num_values, dtype=torch.int32)
    describe(batch, shape, values.numpy())
    return views(values, shape)


def rotary(encoder: Any) -> list[RotaryAttention]:
    return [layer.attention for layer in encoder.layers]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_queries_and_keys_are_turned_as_transformers_does(
    weights: EncoderWeights, inputs: Inputs, dtype: torch.dtype
) -> None:
    encoder = prepare_for_gpu(weights, dtype, CPU)
    cosines, sines = Rotations(inputs.positions).of(rotary(encoder)[0])
    x = torch.randn(inputs.shape.rows, 2, 4, 32, generator=torch.Generator().manual_seed(0)).to(dtype)
    exact = _exact(x, rotary(weights)[0], inputs)
    whole = [torch.cat((angles, angles), dim=-1)[:, 0, 0] for angles in (cosines, sines)]
    theirs = torch.stack(apply_rotary_pos_emb(x[:, 0], x[:, 1], *whole), dim=1)
    ours = rotated(x, cosines, sines)
    assert ours.dtype == dtype
    torch.testing.assert_close(ours, theirs, atol=0, rtol=torch.finfo(dtype).eps)
    # Rounded once: as exact as the nearest value of its type is.
    rounding = (exact.to(dtype).double() - exact).square().mean().sqrt()
    assert (ours.double() - exact).square().mean().sqrt() <= 1.01 * rounding


def _exact(x: Tensor, attention: RotaryAttention, inputs: Inputs) -> Tensor:
    """In float64, of the checkpoint's angles."""
    cosines, sines = (
        table[inputs.positions].double()[:, None, None, :] for table in (attention.cosines, attention.sines)
    )
    first, second = x.double().chunk(2, dim=-1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)


def test_angles_are_gathered_once_a_batch_for_each_table(weights: EncoderWeights, inputs: Inputs) -> None:
    layers = rotary(prepare_for_gpu(weights, torch.float16, CPU))
    rotations = Rotations(inputs.positions)
    addresses = [rotations.of(layer)[0].data_ptr() for layer in layers]
    assert len(layers) == 4
    assert len(set(addresses)) == len({id(layer.cosines) for layer in layers}) == 2


def test_each_layer_attends_with_its_own_angles_and_window(
    weights: EncoderWeights, inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Tensor, Tensor, Tensor, int | None]] = []

    def flash(query: Tensor, key: Tensor, value: Tensor, inputs: Inputs, scale: float, window: int | None) -> Tensor:
        assert scale == pytest.approx(32**-0.5)
        seen.append((query, key, value, window))
        return query.reshape(len(query), -1)

    monkeypatch.setattr(module, "flash_attention", flash)
    encoder = prepare_for_gpu(weights, torch.float16, CPU)
    tables, rotations = AttentionTables.of(encoder, CPU), Rotations(inputs.positions)
    qkv = torch.randn(inputs.shape.rows, 384, generator=torch.Generator().manual_seed(1)).half()
    for layer in encoder.layers:
        attend(qkv[:, :128].clone(), qkv, layer.attention, inputs, tables, rotations)
    view = qkv.view(-1, 3, 4, 32)
    for (query, key, value, window), own in zip(seen, rotary(weights), strict=True):
        exact = _exact(view[:, :2], own, inputs)
        torch.testing.assert_close(torch.stack((query, key), dim=1).double(), exact, atol=2e-3, rtol=1e-3)
        assert torch.equal(value, view[:, 2])
        assert window == own.window


def test_a_kernel_that_does_not_fit_the_attention_is_a_bug(weights: EncoderWeights, inputs: Inputs) -> None:
    encoder = prepare_for_gpu(weights, torch.float16, CPU)
    wrong = replace(inputs, shape=replace(inputs.shape, kernel=AttentionKernel.DISENTANGLED))
    out, qkv = torch.zeros(inputs.shape.rows, 128), torch.zeros(inputs.shape.rows, 384)
    with pytest.raises(RuntimeError, match="This is a bug"):
        attend(
            out, qkv, encoder.layers[0].attention, wrong, AttentionTables.of(encoder, CPU), Rotations(inputs.positions)
        )
