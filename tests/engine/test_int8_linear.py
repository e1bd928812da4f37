"""Products in eight-bit integers on a CPU: exact where they should be, near where they may round, refused elsewhere."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numba
import pytest
import structlog
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from penstock.engine import from_torch, load_engine, load_served_cells
from penstock.engine.compiling import load_compiled
from penstock.engine.cpu import int8_encoder, int8_linear
from penstock.engine.cpu.int8_encoder import prepare_in
from penstock.engine.cpu.int8_linear import Int8Linear, require_int8_products
from penstock.engine.cpu.linear import RoundedLinear
from penstock.engine.device import gpu_precision, multiplies_bfloat16
from penstock.engine.errors import UnsupportedCheckpoint, UnsupportedDevice
from penstock.engine.families import family_of
from penstock.engine.model.checkpoint import read_checkpoint
from penstock.engine.model.int8_balance import NoInt8, signs
from penstock.engine.model.weights import Dense
from tests.engine.helpers import cpu_engine, needs_vnni, pack, random_sequences, save_classifier, save_encoder
from tests.examples import examples


def plain_product(x: Tensor, weight: Tensor) -> Tensor:
    """Exact on any processor."""
    return x.int() @ weight.int()


HAS_VNNI = "torch.cpu._is_vnni_supported"
PRODUCTS = [plain_product, pytest.param(torch._int_mm, marks=needs_vnni)]


def dense_of(width: int, depth: int, activation: str = "identity") -> Dense:
    torch.manual_seed(0)
    return Dense(torch.randn(width, depth) / depth**0.5, torch.randn(width), activation)


def bias_of(dense: Dense) -> Tensor:
    assert dense.bias is not None
    return dense.bias


def linear_of(dense: Dense, sizes: Tensor | None = None) -> Int8Linear:
    """With the product that every processor has."""
    return Int8Linear(dense, torch.ones(dense.weight.shape[1]) if sizes is None else sizes, plain_product)


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("depth", [64, 128, 320, 384, 768, 3072])
@pytest.mark.parametrize("activation", ["identity", "gelu"])
def test_a_product_is_near_the_exact_one(depth: int, activation: str, product: Callable[..., Tensor]) -> None:
    dense = dense_of(200, depth, activation)
    x, residual = torch.randn(300, depth), torch.randn(300, 200)
    linear = Int8Linear(dense, x.square().mean(dim=0).sqrt(), product)
    exact = x.double() @ dense.weight.double().T + bias_of(dense)
    assert relative(linear.plus(x, residual), exact + residual) < 0.012
    assert relative(linear(x), torch.nn.functional.gelu(exact) if activation == "gelu" else exact) < 0.015


def test_rows_that_int8_holds_exactly_have_exact_products() -> None:
    """A row whose rotation is of whole numbers up to 127, one of them 127, loses nothing but float32's rounding."""
    chance = torch.Generator().manual_seed(0)
    hadamard = torch.ones(1, 1)
    while len(hadamard) < 128:
        hadamard = torch.cat([torch.cat([hadamard, hadamard], 1), torch.cat([hadamard, -hadamard], 1)])
    x, weight = (torch.randint(-127, 128, (20, 256), generator=chance).float() for _ in range(2))
    x[:, 0] = weight[:, 0] = 127.0
    of_inputs = signs(256)
    unrotated = [(rows.view(20, 2, 128) @ hadamard / 128).view(20, 256) * of_inputs for rows in (x, weight)]
    linear = linear_of(Dense(unrotated[1], None, "identity"), unrotated[1].square().mean(dim=0).sqrt())
    torch.testing.assert_close(linear(unrotated[0]), x @ weight.T / 128, atol=1e-2, rtol=1e-6)


@pytest.mark.parametrize("size", [100.0, 1e4])
def test_a_row_with_one_large_value_keeps_the_digits_of_the_others(size: float) -> None:
    dense = dense_of(64, 768)
    x = torch.randn(20, 768)
    x[:, 5] = size
    exact = x @ dense.weight.T + bias_of(dense)
    plain = (x / (size / 127)).round() * (size / 127)
    of_others = exact - x[:, 5:6] * dense.weight[:, 5]
    without = float((plain @ dense.weight.T + bias_of(dense) - exact).norm() / of_others.norm())
    measured = x.square().mean(dim=0).sqrt()
    assert float((linear_of(dense, measured)(x) - exact).norm() / of_others.norm()) < without / 2
    assert relative(linear_of(dense)(x), exact) < 0.015


@settings(max_examples=examples(30), deadline=None)
@given(st.data())
def test_a_row_has_the_same_bits_in_any_batch(data: st.DataObject) -> None:
    depth = data.draw(st.sampled_from([64, 256, 384, 1536]))
    width = data.draw(st.sampled_from([3, 57, 384]))
    dense = dense_of(width, depth, data.draw(st.sampled_from(["identity", "gelu", "silu"])))
    can_multiply = torch.cpu._is_vnni_supported()
    linear = Int8Linear(dense, torch.rand(depth), torch._int_mm if can_multiply else plain_product)
    x, residual = torch.randn(600, depth), torch.randn(600, width)
    first = data.draw(st.integers(0, 599))
    rows = slice(first, data.draw(st.integers(first + 1, 600)))
    before = torch.get_num_threads()
    torch.set_num_threads(data.draw(st.sampled_from([1, 2])))
    try:
        assert torch.equal(linear(x[rows]), linear(x)[rows])
        assert torch.equal(linear.plus(x[rows], residual[rows]), linear.plus(x, residual)[rows])
    finally:
        torch.set_num_threads(before)


@needs_vnni
def test_integers_are_summed_exactly_at_their_largest() -> None:
    """Processors without VNNI add pairs of products in 16 bits, where these would be cut off."""
    x, weight = torch.full((5, 1024), 127, dtype=torch.int8), torch.full((64, 1024), -127, dtype=torch.int8)
    assert torch.equal(torch._int_mm(x, weight.t()), plain_product(x, weight.t()))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 3e38])
def test_a_row_of_zeros_is_the_bias_and_a_row_that_is_not_finite_spoils_no_other(bad: float) -> None:
    dense = dense_of(64, 384)
    linear = linear_of(dense)
    x = torch.randn(5, 384)
    expected = linear(x)
    x[1], x[2, 7], x[3, 200:] = 0.0, bad, bad
    found = linear(x)
    assert torch.equal(found[1], bias_of(dense))
    assert not found[3].isfinite().any()
    assert torch.equal(found[[0, 4]], expected[[0, 4]])
    assert not found[2].isfinite().any() or bad == 3e38  # one such value does not overflow yet


def test_a_row_of_tiny_values_is_the_bias() -> None:
    dense = dense_of(64, 384)
    assert torch.equal(linear_of(dense)(torch.full((2, 384), 1e-44)), bias_of(dense).expand(2, 64))


def test_weights_or_inputs_of_zeros_give_the_bias() -> None:
    dense = dense_of(64, 384)
    dense.weight[3] = 0
    dense.weight[:, 9] = 0
    found = linear_of(dense, torch.zeros(384))(torch.randn(4, 384))
    assert torch.equal(found[:, 3], bias_of(dense)[3].expand(4))
    assert found.isfinite().all()


@pytest.mark.parametrize("unseen", [1, 100])
def test_inputs_that_were_zero_when_measured_do_not_take_the_digits_of_the_others(unseen: int) -> None:
    """As of ReLU, where few tokens reach each input."""
    dense = dense_of(64, 768)
    x = torch.randn(20, 768)
    sizes = x.square().mean(dim=0).sqrt()
    sizes[:unseen] = 0.0
    assert relative(linear_of(dense, sizes)(x), x @ dense.weight.T + bias_of(dense)) < 0.02


@pytest.mark.parametrize("depth", [256, 1024])
def test_inputs_that_have_a_mean_lose_no_more_than_others(depth: int) -> None:
    """As after ReLU and GELU. Without signs, rotation gathers the mean in one place of each block: 0.017."""
    dense = dense_of(64, depth)
    x = torch.randn(100, depth).relu_()
    exact = x @ dense.weight.T + bias_of(dense)
    assert relative(linear_of(dense, x.square().mean(dim=0).sqrt())(x), exact) < 0.012


def test_what_int8_does_not_suit_is_named() -> None:
    with pytest.raises(NoInt8, match="200 inputs are no multiple of 64"):
        linear_of(dense_of(8, 200))
    spread = torch.zeros(8, 768)
    spread[:, :128] = signs(768)[:128]  # rotated, all is in one place
    with pytest.raises(NoInt8, match="of its weights"):
        linear_of(Dense(spread, None, "identity"))


@needs_vnni
def test_a_layer_that_int8_does_not_suit_is_named_in_the_log(tmp_path: Path) -> None:
    save_encoder(tmp_path, "bert", hidden_size=256, intermediate_size=200, num_attention_heads=4)
    checkpoint = read_checkpoint(tmp_path)
    with structlog.testing.capture_logs() as logs:
        encoder, wider = prepare_in("int8", family_of(checkpoint).encoder(checkpoint))
    [event] = [event for event in logs if event["event"] == "layers_not_in_int8"]
    assert list(wider) == event["layers"]
    assert event["layers"] == [f"{index} down" for index in range(len(encoder.layers))]
    assert "200 inputs" in event["reason"]


@needs_vnni
def test_layers_that_would_lose_what_tells_tokens_apart_are_in_more_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that all tokens share takes the digits of a row, and tells none apart."""
    save_encoder(tmp_path, "bert", **_SIZES["bert"])
    tensors = load_file(tmp_path / "model.safetensors")
    bias = tensors["encoder.layer.0.attention.output.LayerNorm.bias"]
    bias += 5 * torch.randn(256, generator=torch.Generator().manual_seed(1))
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    engine = cpu_engine(tmp_path, "int8")
    assert {"0 up", "0 down"} <= set(engine.info.wider_layers)
    assert not {"0 qkv", "0 attention_output"} & set(engine.info.wider_layers)
    sequences = random_sequences([3, 9, 5, 40, 9, 17, 2])
    batch, exact = pack(sequences), cpu_engine(tmp_path).run(pack(sequences)).rows
    rows = engine.run(batch).rows
    for sequence, row in zip(sequences, rows, strict=True):
        assert engine.run(pack([sequence])).rows[0].tobytes() == row.tobytes()
    monkeypatch.setattr(int8_encoder, "_MOST_LOST", torch.inf)
    all_in_int8 = cpu_engine(tmp_path, "int8")
    assert all_in_int8.info.wider_layers == ()
    lost, before = (
        relative(torch.cat([*map(torch.from_numpy, found)]), torch.cat([*map(torch.from_numpy, exact)]))
        for found in (rows, all_in_int8.run(batch).rows)
    )
    assert lost < 0.7 * before


@settings(max_examples=examples(20), deadline=None)
@given(st.data())
def test_a_row_of_a_product_in_bfloat16_has_the_same_bits_in_any_batch(data: st.DataObject) -> None:
    if not multiplies_bfloat16():
        pytest.skip("this processor has no bfloat16 products")
    dense = dense_of(data.draw(st.sampled_from([3, 64, 384])), 256, data.draw(st.sampled_from(["identity", "gelu"])))
    linear, x = RoundedLinear(dense), torch.randn(600, 256)
    residual = torch.randn(600, len(dense.weight))
    first = data.draw(st.integers(0, 599))
    rows = slice(first, data.draw(st.integers(first + 1, 600)))
    assert torch.equal(linear(x[rows]), linear(x)[rows])
    assert torch.equal(linear.plus(x[rows], residual[rows]), linear.plus(x, residual)[rows])
    exact = x @ dense.weight.T + bias_of(dense)
    assert relative(linear.plus(x, residual), exact + residual) < 0.005


@needs_vnni
def test_a_model_that_no_block_divides_is_refused(tmp_path: Path) -> None:
    save_encoder(tmp_path, "bert", hidden_size=96, intermediate_size=200, num_attention_heads=4)
    with pytest.raises(UnsupportedCheckpoint, match="96 inputs are no multiple of 64; 200 inputs"):
        cpu_engine(tmp_path, "int8")


_SIZES = {
    "bert": {"hidden_size": 256, "intermediate_size": 512},
    "modernbert": {"hidden_size": 256, "intermediate_size": 512},
    "deberta-v2": {"hidden_size": 256, "intermediate_size": 512},
    "t5": {"d_model": 256, "d_ff": 512, "d_kv": 64},
    "bart": {"d_model": 256, "encoder_ffn_dim": 512, "decoder_ffn_dim": 512},
}


@needs_vnni
def test_a_model_in_memory_has_the_states_of_its_checkpoint(tmp_path: Path) -> None:
    model = save_encoder(tmp_path, "bert", **_SIZES["bert"])
    ids = torch.tensor([[7, 5, 9, 3]])
    hidden = from_torch(model, dtype="int8", device="cpu")(ids, torch.ones_like(ids))
    exact = from_torch(model, dtype="float32", device="cpu")(ids, torch.ones_like(ids))
    assert 0 < relative(hidden, exact) < 0.25
    embedding = cpu_engine(tmp_path, "int8").run(pack([ids[0].int().numpy()])).rows[0]
    torch.testing.assert_close(hidden[0].mean(dim=0), torch.from_numpy(embedding))


@needs_vnni
@pytest.mark.parametrize("family", sorted(_SIZES))
def test_a_model_is_near_float32_and_independent_of_its_batch(tmp_path: Path, family: str) -> None:
    save_encoder(tmp_path, family, **_SIZES[family])
    exact, ours = cpu_engine(tmp_path), cpu_engine(tmp_path, "int8")
    assert ours.info.dtype == "int8"
    sequences = random_sequences([3, 9, 1, 40, 9])
    together = ours.run(pack(sequences)).rows
    for sequence, row, expected in zip(sequences, together, exact.run(pack(sequences)).rows, strict=True):
        assert ours.run(pack([sequence])).rows[0].tobytes() == row.tobytes()
        assert relative(torch.from_numpy(row), torch.from_numpy(expected)) < 0.25  # of random weights


@pytest.mark.slow
def test_loops_that_are_kept_damaged_are_kept_anew(tmp_path: Path) -> None:
    """Each start is a process of its own."""

    def start() -> str:
        code = "from penstock.engine.cpu.int8_kernels import load_kernels; print(load_kernels().rescale.stats)"
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    first = start()
    assert start() != first  # one hit
    for suffix in ("nbi", "nbc"):
        for file in tmp_path.rglob(f"*.{suffix}"):
            file.write_bytes(b"damaged")
        assert start() == first
        assert start() != first


def test_loops_that_cannot_be_kept_are_compiled_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def njit(function: Callable[..., int], *, cache: bool) -> Callable[..., int]:
        if cache:
            raise RuntimeError("no locator available")
        return function

    monkeypatch.setattr(numba, "njit", njit)
    with structlog.testing.capture_logs() as logs:
        assert load_compiled(lambda compiled: compiled(len)([1, 2])) == 2
    [event] = logs
    assert (event["event"], event["reason"]) == ("kernels_not_kept", "RuntimeError: no locator available")


def test_numba_that_compiles_nothing_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HAS_VNNI, lambda: True)
    monkeypatch.setattr(int8_linear, "HAS_ONEDNN", True)
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    with pytest.raises(UnsupportedDevice, match="NUMBA_DISABLE_JIT"):
        require_int8_products()


def test_it_is_refused_where_it_is_not_known_to_be_right(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedDevice, match="'int8' is for encoders that run packed"):
        gpu_precision("int8")
    with pytest.raises(UnsupportedDevice, match="encoders that run packed"):
        load_served_cells("x", cells="no:where", dtype="int8", device="cpu")
    save_classifier(tmp_path, "bert")
    with pytest.raises(UnsupportedDevice, match="encoders that run packed"):
        load_engine(str(tmp_path), dtype="int8", device="cpu", engine="padded")
    monkeypatch.setattr(HAS_VNNI, lambda: True)
    monkeypatch.setattr(torch, "_int_mm", lambda x, weight: plain_product(x, weight).clamp(min=-(1 << 15)))
    with pytest.raises(UnsupportedDevice, match="needs exact sums"):
        require_int8_products()
    monkeypatch.setattr(HAS_VNNI, lambda: False)
    with pytest.raises(UnsupportedDevice, match="AVX-512 VNNI; torch has"):
        require_int8_products()
    monkeypatch.setattr(int8_linear, "HAS_ONEDNN", False)
    with pytest.raises(UnsupportedDevice, match="without oneDNN"):
        require_int8_products()
