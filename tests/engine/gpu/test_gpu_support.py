"""Models that no kernel supports are rejected by name when they are loaded, not batch by batch. No GPU needed."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from penstock.engine.errors import EngineError, UnsupportedDevice
from penstock.engine.families import family_of
from penstock.engine.gpu import GpuEncoder
from penstock.engine.model.checkpoint import read_checkpoint
from penstock.engine.model.weights import EncoderWeights, Heads, PlainAttention
from tests.engine.gpu.random_encoders import COMBINATIONS, Parts, random_encoder
from tests.engine.helpers import GPU_FAMILIES, gpu_sizes, save_encoder


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake of the CUDA functions that the encoder's constructor calls."""
    properties = SimpleNamespace(shared_memory_per_block_optin=227 << 10)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)


def weights_of(directory: Path, family: str, **config: Any) -> EncoderWeights:
    save_encoder(directory, family, **config)
    checkpoint = read_checkpoint(directory)
    return family_of(checkpoint).encoder(checkpoint)


def load(weights: EncoderWeights) -> GpuEncoder:
    return GpuEncoder(weights, device="cpu", graphs=False)


@pytest.mark.parametrize(
    ("family", "config", "error", "message"),
    [
        ("bert", {}, UnsupportedDevice, "heads of 12 on"),
        ("modernbert", {}, UnsupportedDevice, "heads of 12 on"),
        ("deberta-v2", {}, UnsupportedDevice, "heads of 12 on"),
        ("bert", {"hidden_size": 264, "num_attention_heads": 1}, UnsupportedDevice, "heads of 264 on a GPU"),
        ("bert", {"hidden_size": 60}, UnsupportedDevice, "hidden size 60 is no multiple of 8"),
        ("bert", {"hidden_size": 128, "intermediate_size": 100}, UnsupportedDevice, "intermediate size 100 is no"),
        ("modernbert", {"hidden_size": 128, "intermediate_size": 100}, UnsupportedDevice, "intermediate size 100 is"),
        ("electra", {"hidden_size": 128, "embedding_size": 20}, UnsupportedDevice, "embedding size 20 is no multiple"),
        ("bert", {"hidden_size": 128, "hidden_act": "mish"}, UnsupportedDevice, "activation 'mish' has no kernel"),
    ],
)
def test_refused_by_name(
    tmp_path: Path, family: str, config: dict[str, Any], error: type[EngineError], message: str
) -> None:
    with pytest.raises(error, match=message):
        load(weights_of(tmp_path, family, **config))


@pytest.mark.parametrize("hidden", [8200, 16_384])
def test_rows_beyond_a_blocks_registers_are_refused(tmp_path: Path, hidden: int) -> None:
    weights = weights_of(tmp_path, "bert", hidden_size=128)
    (layer,) = weights.layers[:1]
    long = replace(layer, output_norm=replace(layer.output_norm, weight=torch.empty(hidden, device="meta")))
    with pytest.raises(UnsupportedDevice, match=f"hidden size {hidden} is more than the 8192"):
        load(replace(weights, layers=(long,)))
    wide = replace(weights.embeddings, words=torch.empty(10, hidden, device="meta"))
    with pytest.raises(UnsupportedDevice, match=f"embedding size {hidden} is more than the 8192"):
        load(replace(weights, embeddings=wide))


@pytest.mark.parametrize(
    "activation",
    ["gelu", "gelu_10", "gelu_fast", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu", "silu", "swish"],
)
def test_activations_that_are_known_load(tmp_path: Path, activation: str) -> None:
    assert load(weights_of(tmp_path, "bert", hidden_size=128, hidden_act=activation)).device.type == "cpu"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": Heads(4, 2, 32), "has_biases": True}, "heads that share keys, without rotary positions, have no"),
        ({"heads": Heads(4, 4, 24)}, "RotaryAttention does not support heads of 24"),
    ],
)
def test_combinations_without_a_kernel_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedDevice, match=message):
        load(random_encoder(Parts(**changes)))


def test_layers_without_a_kernel_beside_others_are_refused_by_name() -> None:
    weights = random_encoder(Parts(Heads(4, 4, 32), has_head_norms=True))
    first, second = weights.layers
    own: Any = second.attention
    for attention, message in (
        (PlainAttention(), "attention of several kinds"),
        (replace(own, key_norm=None), "norms of queries without norms of keys"),
        (replace(own, key_norm=replace(own.key_norm, subtracts_mean=True)), "LayerNorms of queries and keys"),
    ):
        with pytest.raises(UnsupportedDevice, match=message):
            load(replace(weights, layers=(first, replace(second, attention=attention))))


@pytest.mark.parametrize("max_tokens", [None, 257])
def test_sequences_beyond_the_table_of_angles_are_refused(max_tokens: int | None) -> None:
    """A kernel would read beyond it."""
    weights = replace(random_encoder(Parts(Heads(4, 4, 32), max_tokens=256)), max_tokens=max_tokens)
    with pytest.raises(UnsupportedDevice, match="sequences longer than the table of angles have no kernel"):
        load(weights)


@pytest.mark.parametrize("name", COMBINATIONS)
def test_every_combination_loads(name: str) -> None:
    assert load(random_encoder(COMBINATIONS[name])).device.type == "cpu"


@pytest.mark.parametrize("family", GPU_FAMILIES)
def test_every_family_with_heads_of_32_loads(tmp_path: Path, family: str) -> None:
    assert load(weights_of(tmp_path, family, **gpu_sizes(family))).device.type == "cpu"
