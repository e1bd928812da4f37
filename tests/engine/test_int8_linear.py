"""Products in eight-bit integers on a CPU: exact where they should be, near where they may round, refused elsewhere."""

from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from penstock.engine import from_torch, load_engine, load_served_cells
from penstock.engine.cpu import int8_linear
from penstock.engine.cpu.int8_encoder import prepare_in
from penstock.engine.cpu.int8_linear import Int8Linear, NoInt8, require_int8_products
from penstock.engine.device import gpu_precision
from penstock.engine.errors import UnsupportedCheckpoint, UnsupportedDevice
from penstock.engine.families import family_of
from penstock.engine.model.checkpoint import read_checkpoint
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
    unrotated = [(rows.view(20, 2, 128) @ hadamard / 128).view(20, 256) for rows in (x, weight)]
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


def test_what_int8_does_not_suit_is_named() -> None:
    with pytest.raises(NoInt8, match="200 inputs are no multiple of 64"):
        linear_of(dense_of(8, 200))
    spread = torch.zeros(8, 768)
    spread[:, ::128] = 1.0
    spread = torch.cat([spread @ torch.ones(768, 128), torch.zeros(8, 640)], dim=1)  # rotated, all is in one place
    with pytest.raises(NoInt8, match="of its weights"):
        linear_of(Dense(spread, None, "identity"))


@needs_vnni
def test_a_layer_stays_in_float32_with_its_name_in_the_log(tmp_path: Path) -> None:
    save_encoder(tmp_path, "bert", hidden_size=256, intermediate_size=200, num_attention_heads=4)
    checkpoint = read_checkpoint(tmp_path)
    with structlog.testing.capture_logs() as logs:
        encoder = prepare_in("int8", family_of(checkpoint).encoder(checkpoint))
    [event] = [event for event in logs if event["event"] == "layers_in_float32"]
    assert event["layers"] == [f"{index} down" for index in range(len(encoder.layers))]
    assert "200 inputs" in event["reason"]


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


def test_it_is_refused_where_it_is_not_known_to_be_right(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedDevice, match="'int8' runs on a CPU"):
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
