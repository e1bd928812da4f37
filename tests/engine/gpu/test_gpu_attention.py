"""The launch of attention for each kind and chosen kernel, up to the kernel itself. No GPU needed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from penstock.engine.families import family_of
from penstock.engine.gpu import attention as module
from penstock.engine.gpu.attention import AttentionTables, attend
from penstock.engine.gpu.choice import AttentionKernel
from penstock.engine.gpu.inputs import Inputs, describe, exact_shape, views
from penstock.engine.gpu.ops import GpuDense, prepare_for_gpu
from penstock.engine.model.checkpoint import read_checkpoint
from penstock.engine.model.weights import Encoder, EncoderWeights
from tests.engine.helpers import pack, random_sequences, save_encoder

CPU = torch.device("cpu")


def weights_of(directory: Path, family: str) -> EncoderWeights:
    save_encoder(directory, family, hidden_size=128)
    checkpoint = read_checkpoint(directory)
    return family_of(checkpoint).encoder(checkpoint)


def inputs_for(kernel: AttentionKernel) -> Inputs:
    batch = pack(random_sequences((9, 100, 1, 64)))
    shape = exact_shape(batch, kernel)
    values = torch.empty(shape.num_values, dtype=torch.int32)
    describe(batch, shape, values.numpy())
    return views(values, shape)


def turned_by(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Arguments of each `rotate` but qkv, from now on."""
    turned: list[tuple[Any, ...]] = []
    monkeypatch.setattr(module, "rotate", lambda qkv, *more: turned.append(more))
    return turned


def calls_of(name: str, encoder: Encoder[GpuDense], inputs: Inputs, patch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Arguments of `name` in each layer, without the output, the input and the plan."""
    calls: list[tuple[Any, ...]] = []
    patch.setattr(module, name, lambda out, qkv, plan, *more, **named: calls.append((*more, *named.values())))
    out, qkv = torch.zeros(inputs.shape.rows, 128), torch.zeros(inputs.shape.rows, 384)
    for layer in encoder.layers:
        attend(out, qkv, layer.attention, inputs, AttentionTables.of(encoder, CPU))
    return calls


@pytest.mark.parametrize(("kernel", "queries"), [(AttentionKernel.PACKED_64, 64), (AttentionKernel.PACKED_128, 128)])
def test_each_layer_attends_with_its_own_float32_angles_and_window(
    tmp_path: Path, kernel: AttentionKernel, queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = weights_of(tmp_path, "modernbert")
    encoder = prepare_for_gpu(weights, torch.float16, CPU)
    inputs, turned = inputs_for(kernel), turned_by(monkeypatch)
    plain: list[tuple[Any, ...]] = []
    monkeypatch.setattr(module, "packed_attention", lambda out, qkv, plan, *more: plain.append(more))
    windowed = calls_of("windowed_attention", encoder, inputs, monkeypatch)
    own: list[Any] = [layer.attention for layer in weights.layers]
    for (positions, heads, rotary), attention in zip(turned, own, strict=True):
        assert positions is inputs.positions
        assert heads == weights.heads
        assert torch.equal(rotary.cosines, attention.cosines)
        assert torch.equal(rotary.sines, attention.sines)
    scale, windows = pytest.approx(32**-0.5), [attention.window for attention in own if attention.window is not None]
    assert [call[:4] for call in windowed] == [(weights.heads, scale, queries, window) for window in windows]
    assert plain == [(4, scale, queries)] * (len(own) - len(windows))
    assert 0 < len(windows) < len(own)


@pytest.mark.parametrize("kernel", [AttentionKernel.SHORT, AttentionKernel.PACKED_64])
def test_layers_share_one_table_of_biases_over_the_scale(
    tmp_path: Path, kernel: AttentionKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = weights_of(tmp_path, "mpnet")
    encoder = prepare_for_gpu(weights, torch.float16, CPU)
    name = "short_attention" if kernel is AttentionKernel.SHORT else "packed_attention"
    calls = calls_of(name, encoder, inputs_for(kernel), monkeypatch)
    bias: Any = weights.layers[0].attention
    for *_, table in calls:
        middle, last = table.shape[1] // 2, bias.bias.shape[1] // 2
        for distance in (-500, -last, -7, 0, 1, last, 200):
            column = table[:, min(max(distance + middle, 0), 2 * middle)]
            want = bias.bias[:, min(max(distance, -last), last) + last].half().float() * 32**0.5
            torch.testing.assert_close(column, want, atol=0, rtol=1e-6)
    assert len(calls) == len(weights.layers)


def test_a_kernel_that_does_not_fit_the_attention_is_a_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = prepare_for_gpu(weights_of(tmp_path, "modernbert"), torch.float16, CPU)
    wrong = inputs_for(AttentionKernel.PACKED_64)
    wrong = replace(wrong, shape=replace(wrong.shape, kernel=AttentionKernel.DISENTANGLED))
    out, qkv = torch.zeros(wrong.shape.rows, 128), torch.zeros(wrong.shape.rows, 384)
    turned_by(monkeypatch)
    with pytest.raises(RuntimeError, match="This is a bug"):
        attend(out, qkv, encoder.layers[0].attention, wrong, AttentionTables.of(encoder, CPU))
