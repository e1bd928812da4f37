"""Products in eight-bit integers on a CPU: exact where they should be, near where they may round, refused elsewhere."""

from pathlib import Path

import pytest
import structlog
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from penstock.engine import load_engine, load_served_cells
from penstock.engine.cpu import int8_linear
from penstock.engine.cpu.int8_linear import Int8Linear, require_int8_products, why_not_int8
from penstock.engine.cpu.ops import prepare_for_cpu
from penstock.engine.device import gpu_precision
from penstock.engine.errors import UnsupportedDevice
from penstock.engine.families import family_of
from penstock.engine.model.checkpoint import read_checkpoint
from penstock.engine.model.weights import Dense
from tests.engine.helpers import cpu_engine, needs_vnni, pack, random_sequences, save_classifier, save_encoder
from tests.examples import examples

pytestmark = needs_vnni


def dense_of(width: int, depth: int, activation: str = "identity") -> Dense:
    torch.manual_seed(0)
    return Dense(torch.randn(width, depth) / depth**0.5, torch.randn(width), activation)


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("depth", [256, 384, 768, 1024, 1536, 3072])
@pytest.mark.parametrize("activation", ["identity", "gelu", "silu", "quick_gelu"])
def test_a_product_is_near_the_exact_one(depth: int, activation: str) -> None:
    dense = dense_of(200, depth, activation)
    x, residual = torch.randn(300, depth), torch.randn(300, 200)
    linear = Int8Linear(dense)
    exact = x.double() @ dense.weight.double().T + dense.bias
    assert relative(linear.plus(x, residual), exact + residual) < 0.012
    if activation == "gelu":
        exact = torch.nn.functional.gelu(exact)
    if activation in ("identity", "gelu"):
        assert relative(linear(x), exact) < 0.015


def test_a_row_with_one_large_value_keeps_the_digits_of_the_others() -> None:
    dense = dense_of(64, 768)
    x = torch.randn(20, 768)
    x[:, 5] = 100.0
    others = dense.weight.clone()
    others[:, 5] = 0
    exact = x @ dense.weight.T + dense.bias
    lost = relative(Int8Linear(dense)(x) - x[:, 5:6] * dense.weight[:, 5], exact - x[:, 5:6] * dense.weight[:, 5])
    # With a scale of 100 / 127 for values of size 1 as they are, a quarter would be lost.
    plain = (x / (100 / 127)).round() * (100 / 127)
    without = relative(plain @ dense.weight.T, x @ dense.weight.T)
    assert relative(Int8Linear(dense)(x), exact) < without / 2
    assert lost < 0.15


@settings(max_examples=examples(30), deadline=None)
@given(st.data())
def test_a_row_has_the_same_bits_in_any_batch(data: st.DataObject) -> None:
    depth = data.draw(st.sampled_from([256, 384, 512, 1536]))
    width = data.draw(st.sampled_from([3, 57, 384]))
    linear = Int8Linear(dense_of(width, depth, data.draw(st.sampled_from(["identity", "gelu", "silu"]))))
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


def test_integers_are_summed_exactly_at_their_largest() -> None:
    """Processors without VNNI add pairs of products in 16 bits, where these would be cut off."""
    dense = Dense(torch.ones(64, 1024), None, "identity")
    assert Int8Linear(dense)(torch.ones(5, 1024)).sub(1024).abs().max() < 1e-2


def test_a_row_of_zeros_is_the_bias_and_a_row_that_is_not_finite_spoils_no_other() -> None:
    dense = dense_of(64, 384)
    x = torch.randn(5, 384)
    expected = Int8Linear(dense)(x)
    x[1], x[2, 7], x[3, 9] = 0.0, torch.nan, torch.inf
    found = Int8Linear(dense)(x)
    assert torch.equal(found[1], dense.bias)
    assert not found[2].isfinite().any()
    assert not found[3].isfinite().any()
    assert torch.equal(found[[0, 4]], expected[[0, 4]])


def test_weights_of_zeros_give_the_bias() -> None:
    dense = dense_of(64, 384)
    dense.weight[3] = 0
    assert why_not_int8(dense) is None
    assert torch.equal(Int8Linear(dense)(torch.randn(4, 384))[:, 3], dense.bias[3].expand(4))


def test_what_int8_does_not_suit_is_named() -> None:
    assert why_not_int8(dense_of(8, 384)) is None
    assert "divides the 200 inputs" in str(why_not_int8(dense_of(8, 200)))
    spread = torch.zeros(8, 768)
    spread[:, ::24] = 1.0  # rotated, all of it is in one place of each piece
    assert "of its weights" in str(why_not_int8(Dense(spread, None, "identity")))


def test_a_layer_stays_in_float32_with_its_name_in_the_log(tmp_path: Path) -> None:
    save_encoder(tmp_path, "bert", hidden_size=256, intermediate_size=200, num_attention_heads=4)
    checkpoint = read_checkpoint(tmp_path)
    with structlog.testing.capture_logs() as logs:
        encoder = prepare_for_cpu(family_of(checkpoint).encoder(checkpoint), "int8")
    events = [event for event in logs if event["event"] == "layer_in_float32"]
    assert [event["layer"] for event in events] == [f"{index} down" for index in range(len(encoder.layers))]
    assert all("200 inputs" in event["reason"] for event in events)


_SIZES = {
    "bert": {"hidden_size": 256, "intermediate_size": 512},
    "modernbert": {"hidden_size": 256, "intermediate_size": 512},
    "deberta-v2": {"hidden_size": 256, "intermediate_size": 512},
    "t5": {"d_model": 256, "d_ff": 512, "d_kv": 64},
    "bart": {"d_model": 256, "encoder_ffn_dim": 512, "decoder_ffn_dim": 512},
}


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
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    with pytest.raises(UnsupportedDevice, match="AVX-512 VNNI; torch has"):
        require_int8_products()
    monkeypatch.setattr(int8_linear, "HAS_ONEDNN", False)
    with pytest.raises(UnsupportedDevice, match="without oneDNN"):
        require_int8_products()
