"""Configuration options of each family against transformers in float32; unsupported ones are rejected by name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from penstock.engine import TaskOptions, from_torch, load_engine
from penstock.engine.errors import CheckpointError, UnsupportedCheckpoint
from penstock.engine.families import family_of
from penstock.engine.model.checkpoint import read_checkpoint
from penstock.engine.model.program import record
from tests.engine.helpers import (
    FAMILIES,
    MAX_TOKENS,
    config_of,
    cpu_engine,
    edit_json,
    needs_bfloat16,
    pack,
    random_sequences,
    reference_hidden,
    save_classifier,
    save_encoder,
    write_json,
)

pytestmark = pytest.mark.slow

LENGTHS = (1, 2, 40, 127, 128, 129, 2, MAX_TOKENS)


def largest_error(directory: Path, model: Any, lengths: tuple[int, ...] = LENGTHS, *, types: bool = False) -> float:
    """Of all values of all pooled rows, against transformers; each row also depends on every token's hidden state."""
    sequences = random_sequences(lengths)
    kinds = [np.arange(len(s), dtype=np.int32) // 3 % 2 for s in sequences] if types else [None] * len(sequences)
    batch_types = [kind for kind in kinds if kind is not None] or None
    expected = [reference_hidden(model, s, kind) for s, kind in zip(sequences, kinds, strict=True)]
    engine = cpu_engine(directory)
    errors = []
    for pooling in ("cls", "mean", "max", "last"):
        rows = engine.run(pack(sequences, TaskOptions("embed", pooling=pooling), batch_types)).rows
        errors += [np.abs(row - reduced(want, pooling)).max() for row, want in zip(rows, expected, strict=True)]
    return float(max(errors))


def reduced(hidden: Any, pooling: str) -> Any:
    """[L, H] to [H]."""
    return {"cls": hidden[0], "last": hidden[-1], "mean": hidden.mean(axis=0), "max": hidden.max(axis=0)}[pooling]


@pytest.mark.parametrize("family", FAMILIES)
def test_packs_of_any_lengths_and_poolings_equal_transformers(tmp_path: Path, family: str) -> None:
    """Any of 24 sequences in any order and number, each pooled in any way: 40 packs of 1 to 16 rows.

    Among their lengths are those where kernels change.
    """
    beside = config_of(family).max_position_embeddings - MAX_TOKENS  # rows that RoBERTa and kin do not use
    model = save_encoder(tmp_path, family, max_position_embeddings=512 + beside)
    rng = np.random.default_rng(0)
    lengths = [1, 2, 127, 128, 129, 512, *(int(length) for length in np.exp(rng.uniform(0, np.log(512), 18)))]
    sequences = random_sequences(lengths)
    hidden = [reference_hidden(model, sequence) for sequence in sequences]
    engine = cpu_engine(tmp_path)
    for _ in range(40):
        chosen = rng.integers(0, len(sequences), rng.integers(1, 17))
        poolings = [str(pooling) for pooling in rng.choice(["cls", "mean", "max", "last"], len(chosen))]
        options = [TaskOptions("embed", pooling=pooling) for pooling in poolings]
        rows = engine.run(pack([sequences[i] for i in chosen], options)).rows
        expected = [reduced(hidden[i], pooling) for i, pooling in zip(chosen, poolings, strict=True)]
        np.testing.assert_allclose(np.stack(rows), np.stack(expected), rtol=0, atol=1e-5)


def edit_config(directory: Path, **changes: Any) -> None:
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    write_json(directory / "config.json", {key: value for key, value in (config | changes).items() if value != "gone"})


@pytest.mark.parametrize("family", FAMILIES)
def test_an_odd_number_of_heads(tmp_path: Path, family: str) -> None:
    model = save_encoder(tmp_path, family, **{"n_heads" if family == "distilbert" else "num_attention_heads": 3})
    assert largest_error(tmp_path, model) <= 1e-5


@needs_bfloat16
@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_errs_no_more_than_twice_as_transformers_in_bfloat16_does(tmp_path: Path, family: str) -> None:
    model, sequences = save_encoder(tmp_path, family), random_sequences(LENGTHS)
    exact = [reference_hidden(model, s).mean(axis=0) for s in sequences]
    rows = cpu_engine(tmp_path, "bfloat16").run(pack(sequences)).rows
    ours = rms(rows, exact)
    model.bfloat16()
    with torch.no_grad():
        states = [model(input_ids=torch.from_numpy(s)[None].long()).last_hidden_state[0] for s in sequences]
    theirs = rms([state.float().mean(dim=0).numpy() for state in states], exact)
    assert ours <= 2 * theirs


def rms(rows: Any, expected: Any) -> float:
    """Root of the mean squared error over all values."""
    return float(np.sqrt(np.mean((np.concatenate(rows) - np.concatenate(expected)) ** 2)))


@pytest.mark.parametrize(
    "config",
    [
        {"share_att_key": False},
        {"pos_att_type": ["c2p"]},
        {"pos_att_type": ["p2c"]},
        {"pos_att_type": ["p2c"], "share_att_key": False},
        {"pos_att_type": []},
        {"pos_att_type": [], "relative_attention": False},
        {"position_buckets": -1},
        {"position_buckets": -1, "max_relative_positions": 20},
        {"position_buckets": 9, "max_relative_positions": 50},
        {"position_buckets": 256},
        {"norm_rel_ebd": "none"},
        {"conv_kernel_size": 3, "conv_act": "gelu"},
        {"conv_kernel_size": 5},
        {"position_biased_input": True},
        {"embedding_size": 24, "position_biased_input": True, "type_vocab_size": 2},
    ],
    ids=str,
)
def test_deberta_variants(tmp_path: Path, config: dict[str, Any]) -> None:
    model = save_encoder(tmp_path, "deberta-v2", **config)
    assert largest_error(tmp_path, model, types="type_vocab_size" in config) <= 1e-5


def test_a_convolution_takes_the_cpu_unless_a_gpu_is_insisted_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.engine.device.missing_for_gpu", lambda padded: None)  # as where a GPU is
    model = save_encoder(tmp_path, "deberta-v2", conv_kernel_size=3)
    with capture_logs() as logs:
        engine = load_engine(str(tmp_path), device="auto", dtype="float32")
    assert [(log["event"], log["log_level"]) for log in logs] == [("runs_on_cpu", "warning")]
    assert engine.info.device == "cpu"
    (row,) = engine.run(pack(random_sequences((9,)))).rows
    np.testing.assert_allclose(row, reference_hidden(model, random_sequences((9,))[0]).mean(axis=0), atol=1e-5)
    with capture_logs() as logs:
        hidden = from_torch(model, dtype="float32").packed(torch.arange(2, 9), torch.tensor([0, 7]))
    assert [log["event"] for log in logs] == ["runs_on_cpu"]
    np.testing.assert_allclose(hidden, reference_hidden(model, np.arange(2, 9, dtype=np.int32)), atol=1e-5)
    checkpoint = read_checkpoint(tmp_path)
    with pytest.raises(UnsupportedCheckpoint, match="use device='cpu'"):  # what the GPU's encoder does at load
        record(family_of(checkpoint).encoder(checkpoint), lambda dense: len(dense.weight), 4)


def assert_scores_equal(directory: Path, model: Any) -> None:
    """The scores of each label, against transformers."""
    sequences = random_sequences((1, 12, 80))
    rows = cpu_engine(directory).run(pack(sequences, TaskOptions("classify"))).rows
    with torch.no_grad():
        for sequence, row in zip(sequences, rows, strict=True):
            logits = model(input_ids=torch.from_numpy(sequence)[None].long()).logits[0]
            np.testing.assert_allclose(row, torch.softmax(logits, dim=0).numpy(), atol=1e-5)


@pytest.mark.parametrize("activation", ["gelu", "tanh"])
def test_debertas_context_pooler(tmp_path: Path, activation: str) -> None:
    model = save_classifier(tmp_path, "deberta-v2", num_labels=3, pooler_hidden_act=activation)
    assert_scores_equal(tmp_path, model)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"conv_kernel_size": 4}, "conv_kernel_size 4"),
        ({"conv_kernel_size": 3, "conv_groups": 2}, "conv_groups 2"),
        ({"pos_att_type": "p2p|c2p"}, r"pos_att_type \['p2p'\]"),
        ({"relative_attention": False}, "pos_att_type without relative_attention"),
        ({"attention_head_size": 64}, "attention_head_size"),
        ({"max_relative_positions": 5}, "16 buckets do not reach 5 positions"),
    ],
)
def test_deberta_variants_that_are_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    save_encoder(tmp_path, "deberta-v2")
    edit_config(tmp_path, **change)
    with pytest.raises(CheckpointError, match=words):
        cpu_engine(tmp_path)


def test_relative_biases_saturate_far_away(tmp_path: Path) -> None:
    model = save_encoder(tmp_path, "mpnet", max_position_embeddings=302)
    assert largest_error(tmp_path, model, (300, 150, 17)) <= 1e-5


@pytest.mark.parametrize(
    ("config", "num_matrices"),
    [
        ({"num_hidden_layers": 5, "num_hidden_groups": 2}, 2),
        ({"num_hidden_layers": 3, "inner_group_num": 2}, 2),
        ({"embedding_size": 48}, 1),
    ],
    ids=str,
)
def test_albert_shares_layers(tmp_path: Path, config: dict[str, Any], num_matrices: int) -> None:
    model = save_encoder(tmp_path, "albert", **config)
    assert largest_error(tmp_path, model, types=True) <= 1e-5
    checkpoint = read_checkpoint(tmp_path)
    layers = family_of(checkpoint).encoder(checkpoint).prepared(lambda dense: dense, lambda table: table).layers
    assert len({id(layer) for layer in layers}) == num_matrices


@pytest.mark.parametrize(("name", "other"), [("n_heads", "num_attention_heads"), ("n_layers", "num_hidden_layers")])
def test_two_names_of_a_setting_of_distilbert_that_differ_are_refused(tmp_path: Path, name: str, other: str) -> None:
    """transformers takes the second."""
    save_encoder(tmp_path, "distilbert")
    edit_json(tmp_path / "config.json", **{other: 1})
    with pytest.raises(CheckpointError, match=f"'{name}' is [24] and '{other}' 1"):
        cpu_engine(tmp_path)


def test_electra_without_a_projection(tmp_path: Path) -> None:
    model = save_encoder(tmp_path, "electra", embedding_size=48)
    assert largest_error(tmp_path, model, types=True) <= 1e-5


@pytest.mark.parametrize(
    "config",
    [
        {"attention_bias": True, "mlp_bias": True, "norm_bias": True},
        {"local_attention": 2},
        {"local_attention": 400},
        {"layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]},
    ],
    ids=str,
)
def test_modernbert_variants(tmp_path: Path, config: dict[str, Any]) -> None:
    assert largest_error(tmp_path, save_encoder(tmp_path, "modernbert", **config)) <= 1e-5


def test_modernbert_as_older_versions_of_transformers_write_it(tmp_path: Path) -> None:
    thetas = {"full_attention": 1000.0, "sliding_attention": 50.0}
    parameters = {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in thetas.items()}
    model = save_encoder(tmp_path, "modernbert", rope_parameters=parameters)
    assert largest_error(tmp_path, model) <= 1e-5
    old = {"global_rope_theta": 1000.0, "local_rope_theta": 50.0, "global_attn_every_n_layers": 3}
    edit_config(tmp_path, rope_parameters="gone", layer_types="gone", **old)
    assert largest_error(tmp_path, model) <= 1e-5


@pytest.mark.parametrize(("pooling", "bias"), [("cls", True), ("mean", False)])
def test_modernberts_prediction_head(tmp_path: Path, pooling: str, bias: bool) -> None:
    model = save_classifier(tmp_path, "modernbert", num_labels=3, classifier_pooling=pooling, classifier_bias=bias)
    assert_scores_equal(tmp_path, model)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layer_types": ["chunked_attention"] * 4}, "layer_types must name 4 layers"),
        ({"rope_scaling": {"rope_type": "ntk", "factor": 2.0}}, "rotary positions "),
        ({"num_attention_heads": 16}, "heads of 3 cannot be rotated"),
    ],
)
def test_modernbert_variants_that_are_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    save_encoder(tmp_path, "modernbert")
    edit_config(tmp_path, **change)
    with pytest.raises(UnsupportedCheckpoint, match=words):
        cpu_engine(tmp_path)
