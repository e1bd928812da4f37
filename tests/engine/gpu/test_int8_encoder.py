"""Encoders in eight-bit integers for a GPU, with torch in place of the kernels. No GPU needed."""

from pathlib import Path
from typing import Any

import pytest
import structlog
import torch
from torch import Tensor

from penstock.engine.cpu.int8_encoder import plan_int8, rounded_product
from penstock.engine.cpu.ops import CpuOps, encode_on_cpu, prepare_for_cpu
from penstock.engine.device import encoder_gpu_precision
from penstock.engine.errors import UnsupportedCheckpoint, UnsupportedDevice
from penstock.engine.families import family_of
from penstock.engine.gpu import int8_ops
from penstock.engine.gpu.int8_encoder import FeedingNorm, Int8Dense, hadamard, prepare_int8, require_int8_supported
from penstock.engine.gpu.int8_ops import Int8Ops, int8_rows_bytes
from penstock.engine.kernels.int8_product import Int8Blocks, Int8Matrix, block_order
from penstock.engine.kernels.int8_rows import Int8Rows
from penstock.engine.model.checkpoint import read_checkpoint
from penstock.engine.model.dense import activate
from penstock.engine.model.layout import sort_by_length
from penstock.engine.model.program import record
from penstock.engine.model.weights import EncoderWeights, Norm
from tests.engine.helpers import pack, random_sequences, save_encoder

CPU = torch.device("cpu")
SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4}


def weights_of(directory: Path, family: str, **config: Any) -> EncoderWeights:
    save_encoder(directory, family, **config)
    checkpoint = read_checkpoint(directory)
    return family_of(checkpoint).encoder(checkpoint)


def int8_rows(out: Int8Rows, x: Tensor, factors: Tensor) -> None:
    rotated = ((x.float() * factors.float()).view(-1, 128) @ hadamard(CPU)).view(x.shape)
    out.scales.copy_(rotated.abs().amax(dim=1) / 127)
    out.integers.copy_((rotated / out.scales[:, None]).round())


def int8_norm(
    out: Tensor, integers: Int8Rows, x: Tensor, bias: Tensor | None, residual: Tensor, norm: Norm, factors: Tensor
) -> None:
    residual_norm(out, x, bias, residual, norm)
    int8_rows(integers, out, factors)


def residual_norm(out: Tensor, x: Tensor, bias: Tensor | None, residual: Tensor, norm: Norm) -> None:
    total = x + residual if bias is None else x + bias + residual
    out.copy_(torch.nn.functional.layer_norm(total, (x.shape[1],), norm.weight, norm.bias, norm.eps))


def columns_of(matrix: Int8Matrix) -> tuple[Tensor, Tensor, Tensor]:
    """Scales, biases and factors of a matrix's outputs."""
    scales = matrix.columns[:, :2].contiguous().view(torch.float32).flatten()
    bias, factors = (matrix.columns[:, i].contiguous().view(torch.float16).float() for i in (2, 3))
    return scales, bias, factors


def int8_product(out: Tensor, x: Int8Rows, weight: Int8Matrix, kind: str) -> None:
    scales, bias, _ = columns_of(weight)
    product = (x.integers.float() @ weight.integers.float().t()) * x.scales[:, None] * scales
    out.copy_(activate(product + bias, kind))


def product_to_blocks(out: Int8Blocks, x: Int8Rows, weight: Int8Matrix, kind: str) -> None:
    product = torch.empty(out.integers.shape)
    int8_product(product, x, weight, kind)
    scaled = (product * columns_of(weight)[2]).view(len(product), -1, 128)
    for block in range(scaled.shape[1]):
        rotated = scaled[:, block] @ hadamard(CPU)
        out.scales[block] = rotated.abs().amax(dim=1) / 127
        integers = (rotated / out.scales[block][:, None]).round()
        out.integers[:, 128 * block : 128 * (block + 1)] = integers[:, block_order()]


def product_of_blocks(out: Tensor, x: Int8Blocks, weight: Int8Matrix) -> None:
    scales, bias, _ = columns_of(weight)
    rows = x.integers.float() * x.scales.t().repeat_interleave(128, dim=1)
    out.copy_((rows @ weight.integers.float().t()) * scales + bias)


@pytest.mark.parametrize("family", ["bert", "mpnet", "albert", "electra"])
def test_a_forward_is_near_float32(tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for function in (int8_rows, int8_norm, residual_norm, int8_product, product_to_blocks, product_of_blocks):
        monkeypatch.setattr(int8_ops, function.__name__, function)
    weights = weights_of(tmp_path, family, **SIZES)
    batch = pack(random_sequences((5, 1, 30, 5)))
    layout = sort_by_length(batch.cu_seqlens)
    exact = encode_on_cpu(prepare_for_cpu(weights, torch.float32), batch, layout, torch.float32)

    encoder, _ = prepare_int8(weights, plan_int8(weights, rounded_product), torch.float32, CPU)
    program = record(encoder, lambda dense: dense.width, 4)
    program = program.with_scratch(int8_rows_bytes(weights), int8_rows_bytes(weights) // 4)
    buffers = [torch.full((len(exact), width), torch.nan) for width in program.widths]
    ops: Any = Int8Ops.__new__(Int8Ops)
    ids = torch.from_numpy(batch.token_ids[layout.tokens])
    plain = CpuOps(layout, ids, torch.zeros_like(ids), encoder.heads, torch.float32)
    Int8Ops.__init__(ops, None, None, None, buffers[-1])  # type: ignore[arg-type]  # batches are `plain`'s
    ops._product = lambda out, x, dense: out.copy_(torch.addmm(dense.bias, x, dense.weight_t))
    ops.embed = lambda out, embeddings: out.copy_(plain.embed(embeddings))
    ops.attend = lambda out, qkv, attention: out.copy_(plain.attend(qkv, attention))
    hidden = program.run(ops.by_name(), buffers)
    assert 0 < (hidden - exact).norm() / exact.norm() < 0.25  # of random weights


def test_norms_feed_the_products_after_them(tmp_path: Path) -> None:
    weights = weights_of(tmp_path, "bert", **SIZES)
    encoder, _ = prepare_int8(weights, plan_int8(weights, rounded_product), torch.float16, CPU)
    first, *others = encoder.layers
    assert isinstance(first.qkv, Int8Dense)
    assert not first.qkv.is_fed
    assert others
    for before, after in zip(encoder.layers, others, strict=False):
        assert isinstance(before.output_norm, FeedingNorm)
        assert isinstance(after.qkv, Int8Dense)
        assert after.qkv.is_fed
        assert before.output_norm.factors is after.qkv.factors
    assert not isinstance(encoder.layers[-1].output_norm, FeedingNorm)
    for layer in encoder.layers:
        assert isinstance(layer.attention_norm, FeedingNorm)
        assert isinstance(layer.up, Int8Dense)
        assert isinstance(layer.down, Int8Dense)
        assert (layer.up.is_fed, layer.down.is_fed) == (True, False)
        assert layer.up.gives_blocks
        assert layer.down.takes_blocks


def test_integers_are_the_weights(tmp_path: Path) -> None:
    weights = weights_of(tmp_path, "bert", **SIZES)
    encoder, _ = prepare_int8(weights, plan_int8(weights, rounded_product), torch.float16, CPU)
    for own, layer in zip(weights.layers, encoder.layers, strict=True):
        dense = layer.down
        assert isinstance(dense, Int8Dense)
        assert sorted(block_order().tolist()) == list(range(128))
        integers = dense.weight.integers.view(len(own.down.weight), -1, 128)[:, :, block_order().argsort()]
        rotated = integers.reshape(own.down.weight.shape).float() * columns_of(dense.weight)[0][:, None] * 128
        back = (rotated.view(-1, 128) @ hadamard(CPU)).view(own.down.weight.shape) / 128 * dense.factors.float()
        assert (back - own.down.weight).norm() / own.down.weight.norm() < 0.015


def test_a_matrix_that_no_block_divides_stays_in_16_bits_with_its_name_in_the_log(tmp_path: Path) -> None:
    weights = weights_of(tmp_path, "bert", hidden_size=256, intermediate_size=200, num_attention_heads=4)
    with structlog.testing.capture_logs() as logs:
        encoder, wider = prepare_int8(weights, plan_int8(weights, rounded_product), torch.float16, CPU)
    assert not any(isinstance(layer.down, Int8Dense) for layer in encoder.layers)
    assert wider == tuple(f"{index} down" for index in range(len(encoder.layers)))
    [event] = [event for event in logs if event["event"] == "layers_not_in_int8"]
    assert event["layers"] == list(wider)
    assert event["dtype"] == "float16"
    assert event["reason"] == "200 inputs are no multiple of 64"


def test_a_model_that_no_block_divides_is_refused(tmp_path: Path) -> None:
    weights = weights_of(tmp_path, "bert", hidden_size=192, intermediate_size=200, num_attention_heads=4)
    with pytest.raises(UnsupportedCheckpoint, match=r"no matrix of this model.*192 inputs are no multiple of 128"):
        prepare_int8(weights, plan_int8(weights, rounded_product), torch.float16, CPU)


@pytest.mark.parametrize(
    ("family", "missing"),
    [("modernbert", r"norms before each block \(pre-norm\), gates, rotary"), ("nomic_bert", "gates, rotary")],
)
def test_encoders_without_kernels_are_refused(tmp_path: Path, family: str, missing: str) -> None:
    weights = weights_of(tmp_path, family, **SIZES)
    with pytest.raises(UnsupportedDevice, match=f"{missing} positions. Use auto, or int8 with device='cpu'"):
        require_int8_supported(weights)


def test_older_gpus_are_refused_with_their_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 6))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A10")
    with pytest.raises(UnsupportedDevice, match=r"needs compute capability 9.0 \(Hopper\); NVIDIA A10 has 8.6"):
        encoder_gpu_precision("int8")
    assert encoder_gpu_precision("auto") == "float16"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert encoder_gpu_precision("int8") == "int8"
    with pytest.raises(UnsupportedDevice, match="which this family overflows"):
        encoder_gpu_precision("int8", overflows_float16=True)
