"""Families of Llama's kind: config.json in all its forms, what is refused or runs padded, and classifiers.

The reference is transformers' model of the same directory.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from structlog.testing import capture_logs

from penstock.engine import TaskOptions, load_engine
from penstock.engine.errors import CheckpointError, NoKernel, NotPacked, UnsupportedCheckpoint, UnsupportedDevice
from penstock.engine.padded.engine import PaddedEngine
from penstock.engine.padded.loading import load_padded
from penstock.engine.types import Float32Array, Int32Array
from tests.engine.helpers import (
    VOCAB,
    cpu_engine,
    edited_tensors,
    pack,
    random_sequences,
    randomise,
    reference_hidden,
    save_classifier,
    save_encoder,
    save_tagger,
    write_json,
)

pytestmark = pytest.mark.slow

_AUTO_MODEL: Any = transformers.AutoModel
LENGTHS = (1, 2, 40, 64, 65, 130)
FULL, SLIDING = "full_attention", "sliding_attention"


def assert_as_transformers(directory: Path, lengths: tuple[int, ...] = LENGTHS) -> None:
    """The mean and the last of a text's hidden states, which depend on those of all tokens."""
    model, sequences = _AUTO_MODEL.from_pretrained(directory).eval(), random_sequences(lengths)
    engine, hidden = cpu_engine(directory), [reference_hidden(model, sequence) for sequence in sequences]
    for pooling, expected in (("mean", [h.mean(axis=0) for h in hidden]), ("last", [h[-1] for h in hidden])):
        rows = engine.run(pack(sequences, TaskOptions("embed", pooling))).rows
        np.testing.assert_allclose(rows, expected, rtol=0, atol=1e-5)


def edit_config(directory: Path, **changes: Any) -> None:
    """Change keys of config.json; `...` removes one."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    write_json(directory / "config.json", {k: v for k, v in (config | changes).items() if v is not ...})


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("qwen3", {"num_key_value_heads": 2, "head_dim": 8}),
        ("qwen3", {"num_key_value_heads": 4, "attention_bias": True, "hidden_act": "gelu"}),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 20, "layer_types": [SLIDING, FULL]}),
        ("qwen3", {"sliding_window": 20, "max_window_layers": 0}),
        ("qwen3", {"is_causal": False}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 0, "is_causal": False}),
        ("qwen2", {"num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-3}),
        ("llama", {"num_key_value_heads": 2, "head_dim": 20, "attention_bias": True, "mlp_bias": True}),
        ("llama", {"is_causal": False, "pretraining_tp": 2}),
        ("mistral", {"sliding_window": None, "head_dim": 20}),
        ("mistral", {"sliding_window": 1}),
        ("mistral", {"sliding_window": 64, "num_key_value_heads": 2}),
        ("mistral", {"sliding_window": 20, "is_causal": False}),
        ("eurobert", {"num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True}),
        ("eurobert", {"head_dim": 20, "is_causal": True}),
        ("gemma3_text", {"use_bidirectional_attention": False, "num_key_value_heads": 2}),
        ("gemma3_text", {"sliding_window": 21, "layer_types": [FULL, SLIDING, SLIDING]}),
        ("gemma3_text", {"sliding_window": 2, "attention_bias": True, "final_logit_softcapping": 30.0}),
        ("gemma3_text", {"query_pre_attn_scalar": 20, "hidden_activation": "silu", "rms_norm_eps": 1e-3}),
    ],
    ids=str,
)
def test_variants(tmp_path: Path, family: str, config: dict[str, Any]) -> None:
    save_encoder(tmp_path, family, **config)
    assert_as_transformers(tmp_path)


_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "intermediate_size": 16,
    "num_attention_heads": 32,
    "num_hidden_layers": 6,
    "pad_token_id": 0,
}
_CLASSES: dict[str, Any] = {
    "eurobert": transformers.EuroBertConfig,
    "gemma3_text": transformers.Gemma3TextConfig,
    "llama": transformers.LlamaConfig,
    "mistral": transformers.MistralConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
}


@pytest.mark.parametrize("family", _CLASSES)
def test_what_a_config_file_leaves_out_has_the_default_of_its_class(tmp_path: Path, family: str) -> None:
    model = _AUTO_MODEL.from_config(_CLASSES[family](**_SIZES))
    randomise(model)
    model.save_pretrained(tmp_path)
    write_json(tmp_path / "config.json", _SIZES | {"model_type": family, "architectures": [type(model).__name__]})
    assert_as_transformers(tmp_path, (9, 70))


_LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 20}
_YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 60, "rope_theta": 10_000.0}
_LINEAR = {"rope_type": "linear", "factor": 2.5}
_OLD = {"rope_parameters": ...}


_UNLISTED = {"layer_types": ..., "sliding_window": 20}


@pytest.mark.parametrize(
    ("family", "form"),
    [
        ("qwen3", _UNLISTED | {"use_sliding_window": True, "max_window_layers": 1}),
        ("qwen2", _UNLISTED | {"use_sliding_window": False, "max_window_layers": 0}),
        ("gemma3_text", _UNLISTED | {"sliding_window": 21, "sliding_window_pattern": 3}),
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500}}),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5000.0, **_LLAMA3}}),
        ("llama", _OLD | {"rope_theta": 5000.0, "rope_scaling": {"rope_type": "llama3", **_LLAMA3}}),
        ("llama", _OLD | {"rope_scaling": {"type": "linear", "factor": 4.0}}),
        ("llama", {"rope_parameters": {"rope_theta": 7.0}, "rope_scaling": _LINEAR, "rope_theta": 300.0}),
        ("qwen3", _OLD | {"rope_theta": 1_000_000, "rope_scaling": None}),
        ("qwen2", {"rope_parameters": _LINEAR | {"rope_theta": 100.0}}),
        ("mistral", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5000.0, **_LLAMA3}}),
        ("qwen3", {"rope_parameters": _YARN}),
        ("qwen3", {"rope_parameters": _YARN | {"attention_factor": 0.7, "beta_fast": 9, "beta_slow": 0.5}}),
        ("qwen2", {"rope_parameters": _YARN | {"factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0.4}}),
        ("llama", {"rope_parameters": _YARN | {"mscale": 0.7, "truncate": False}}),
        ("llama", {"rope_parameters": _YARN | {"truncate": None}}),
        ("llama", {"rope_parameters": _YARN | {"factor": None}}),
        ("llama", {"rope_parameters": _YARN | {"factor": 0.5, "beta_fast": 0}}),
        ("mistral", _OLD | {"rope_theta": 500, "rope_scaling": {"type": "yarn", "factor": 2.0}}),
        ("modernbert", {"rope_parameters": {FULL: _YARN, SLIDING: _LINEAR}}),
        ("eurobert", _OLD | {"rope_theta": 250_000}),
        ("modernbert", _OLD | {"rope_scaling": _LINEAR, "global_rope_theta": 900.0, "local_rope_theta": 50.0}),
        ("modernbert", {"rope_parameters": {FULL: {"rope_type": "llama3", **_LLAMA3}, SLIDING: _LINEAR}}),
        ("modernbert", {"rope_scaling": _LINEAR, "rope_theta": 20.0}),
        ("gemma3_text", _OLD | {"rope_theta": 900.0, "rope_local_base_freq": 50.0, "sliding_window_pattern": 3}),
        ("gemma3_text", _OLD | {"rope_theta": 900.0, "rope_scaling": _LINEAR}),
        ("gemma3_text", {"rope_parameters": {FULL: {}}, "rope_scaling": {"type": "linear", "factor": 2.5}}),
        ("gemma3_text", {"rope_parameters": {FULL: _LINEAR, SLIDING: {"rope_type": "default", "rope_theta": 9}}}),
        ("gemma3_text", {"rope_parameters": {SLIDING: None}, "rope_theta": 77.0}),
    ],
    ids=str,
)
def test_layers_and_rotary_positions_in_old_and_new_forms(tmp_path: Path, family: str, form: dict[str, Any]) -> None:
    save_encoder(tmp_path, family, num_hidden_layers=3)
    edit_config(tmp_path, **form)
    assert_as_transformers(tmp_path, (130,))


@pytest.mark.parametrize(
    ("family", "change", "words"),
    [
        ("modernbert", {"rope_parameters": {FULL: _YARN | {"truncate": False}}}, "truncate of one kind of layers"),
        ("llama", {"rope_scaling": _YARN, "original_max_position_embeddings": 60}, "original_max_position_embeddings"),
        ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "mscale": 1.0}}, "with mscale"),
        ("llama", {"partial_rotary_factor": 0.5, "rope_scaling": None}, "partial_rotary_factor"),
        (
            "llama",
            {"rope_scaling": {"rope_type": "llama3", **_LLAMA3}, "original_max_position_embeddings": 60},
            "original_max_position_embeddings outside",
        ),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ("gemma3_text", {"is_causal": False}, "is_causal"),
        ("llama", {"per_layer_config": {"1": {"mlp_bias": False}}}, "per_layer_config"),
        ("eurobert", {"is_causal": None}, "is_causal None"),
        ("llama", {"max_position_embeddings": 4_194_304}, "4,194,304 rotary positions"),
        ("gte", {"max_position_embeddings": 4_194_304}, "4,194,304 rotary positions"),
        # The older name of the type has no effect there.
        ("gemma3_text", _OLD | {"rope_scaling": {"type": "linear", "factor": 2.5}}, "with factor"),
        ("modernbert", _OLD | {"rope_scaling": {"type": "linear", "factor": 2.5}}, "with factor"),
        ("mistral", {"layer_types": [SLIDING, FULL], "sliding_window": 20}, "layer_types in a Mistral"),
    ],
    ids=str,
)
def test_what_is_not_packed_is_named_and_runs_padded(
    tmp_path: Path, family: str, change: dict[str, Any], words: str
) -> None:
    save_encoder(tmp_path, family)
    edit_config(tmp_path, **change)
    with pytest.raises(NotPacked, match=words):
        cpu_engine(tmp_path)
    with capture_logs() as logs:
        engine = load_engine(str(tmp_path), dtype="float32", device="cpu", engine="auto")
    (log,) = logs
    assert (log["event"], log["model_type"]) == ("runs_padded", family)
    assert words.split("'")[-2] in log["reason"] if "'" in words else words in log["reason"]
    model, sequences = _AUTO_MODEL.from_pretrained(tmp_path).eval(), random_sequences((9, 70))
    rows = engine.run(pack(sequences, TaskOptions("embed", "last", False))).rows
    np.testing.assert_allclose(rows, [reference_hidden(model, s)[-1] for s in sequences], atol=1e-5)


@pytest.mark.parametrize("save", [save_encoder, save_classifier])
def test_without_kernels_they_run_padded_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: Any) -> None:
    def no_kernel(*_: object, int8_plan: None) -> None:
        raise UnsupportedDevice("what they compute has no kernel")

    def on_cpu(*given: Any, device: str, dtype: str, **options: Any) -> PaddedEngine:
        assert (device, dtype) == ("auto", "auto")
        return load_padded(*given, device="cpu", dtype="float32", **options)

    monkeypatch.setattr("penstock.engine.device.missing_for_gpu", lambda padded: None)  # as where a GPU is
    monkeypatch.setattr("penstock.engine.loading.encoder.device_name", lambda: "a GPU")
    monkeypatch.setattr("penstock.engine.gpu.encoder.GpuEncoder", no_kernel)
    monkeypatch.setattr("penstock.engine.padded.loading.load_padded", on_cpu)
    save(tmp_path, "qwen3", pad_token_id=0)
    with pytest.raises(NoKernel, match="kernel"):
        load_engine(str(tmp_path), engine="packed")
    assert load_engine(str(tmp_path), engine="auto").info.padded


@pytest.mark.parametrize(
    ("family", "change", "words"),
    [
        ("qwen3", {"layer_types": [SLIDING, FULL]}, "use_sliding_window"),
        ("qwen3", {"layer_types": [FULL]}, "layer_types must name 2 layers"),
        ("gemma3_text", {"layer_types": ["chunked_attention"] * 3}, "layer_types must name 3 layers"),
        ("gemma3_text", {"rope_parameters": {"rope_theta": 5.0}}, "rope_theta beside the kinds"),
        ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
        ("llama", {"rope_scaling": {"rope_type": "linear", "factor": -1.0}}, "positive 'factor'"),
        ("llama", {"rope_scaling": _YARN | {"beta_slow": -1.0}}, "positive 'beta_slow'"),
        ("llama", {"rope_scaling": _YARN | {"rope_theta": 1.0}}, "cannot be computed for rope_theta 1.0"),
        ("llama", {"num_attention_heads": 16, "head_dim": None}, "heads of 3 cannot be rotated"),
        ("qwen3", {"num_key_value_heads": 3}, "3 heads of keys do not divide 4"),
        ("qwen3", {"hidden_act": "snake"}, "activation 'snake'"),
        ("mistral", {"sliding_window": 0}, "'sliding_window' must be a positive integer"),
        ("llama", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ("modernbert", {"per_layer_config": {"1": {"mlp_bias": False}}}, "per_layer_config"),
        ("llama", {"num_hidden_layers": 1}, "would not be used"),
        ("llama", {"num_hidden_layers": 3}, "is missing"),
    ],
    ids=str,
)
def test_variants_that_are_refused(tmp_path: Path, family: str, change: dict[str, Any], words: str) -> None:
    save_encoder(tmp_path, family)
    edit_config(tmp_path, **change)
    with pytest.raises(CheckpointError, match=words):
        cpu_engine(tmp_path)


def test_a_bias_that_the_family_does_not_have_is_refused(tmp_path: Path) -> None:
    save_encoder(tmp_path, "mistral", attention_bias=True)
    with edited_tensors(tmp_path) as tensors:
        tensors["layers.1.self_attn.q_proj.bias"] = torch.ones(48)
    with pytest.raises(UnsupportedCheckpoint, match=r"layers.1.self_attn.q_proj.bias would not be used"):
        cpu_engine(tmp_path)


@pytest.mark.parametrize("family", ["gemma3_text", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_below_a_head_in_shards(tmp_path: Path, family: str, tied: bool) -> None:
    """Tensors with the prefix of the class, and the head's own, which is not read."""
    encoder = save_encoder(tmp_path / "alone", family)
    kind: Any = transformers.AutoModelForCausalLM
    model = kind.from_config(
        encoder.config.__class__.from_dict(encoder.config.to_dict() | {"tie_word_embeddings": tied})
    )
    randomise(model)
    model.save_pretrained(tmp_path / "head", max_shard_size="40KB")
    assert (tmp_path / "head" / "model.safetensors.index.json").exists()
    (tmp_path / "head" / "1_Pooling").mkdir()
    write_json(tmp_path / "head" / "1_Pooling" / "config.json", {"pooling_mode_lasttoken": True})
    kinds = {"": "Transformer", "1_Pooling": "Pooling"}
    write_json(
        tmp_path / "head" / "modules.json",
        [{"name": name, "path": name, "type": f"sentence_transformers.models.{kind}"} for name, kind in kinds.items()],
    )
    sequences = random_sequences((9, 70))
    rows = cpu_engine(tmp_path / "head").run(pack(sequences)).rows
    np.testing.assert_allclose(rows, [reference_hidden(model.model, s)[-1] for s in sequences], rtol=0, atol=1e-5)


def logits_of(model: Any, sequences: Iterable[Int32Array]) -> Float32Array:
    with torch.no_grad():
        logits = [model(input_ids=torch.from_numpy(s)[None].long()).logits[0].numpy() for s in sequences]
    return np.stack(logits)


@pytest.mark.parametrize(("family", "pad"), [("qwen3", 5), ("gemma3_text", 0), ("llama", None)])
def test_a_classifier_reads_the_last_token_that_is_no_padding(tmp_path: Path, family: str, pad: int | None) -> None:
    model = save_classifier(tmp_path, family, num_labels=3, problem_type="regression", pad_token_id=pad)
    if family == "gemma3_text":
        edit_config(tmp_path, pad_token_id=...)  # 0 is its default
    rows = [[9, 8, 7], [9, 8, 7, 5, 5], [5, 5, 5], [0, 0, 0], [5, 9, 0, 0], [3, 5, 6], [9, 8, 0]]
    sequences = [np.array(row, np.int32) for row in rows]
    results = cpu_engine(tmp_path).run(pack(sequences, TaskOptions("classify"))).rows
    np.testing.assert_allclose(results, logits_of(model, sequences), rtol=0, atol=1e-5)


def test_a_token_classifier_without_a_bias(tmp_path: Path) -> None:
    model = save_tagger(tmp_path, "qwen3", token_classification_bias=False)
    sequence = random_sequences((9,))[0]
    (row,) = cpu_engine(tmp_path).run(pack([sequence], TaskOptions("token_classify"))).rows
    expected = torch.softmax(torch.from_numpy(logits_of(model, [sequence])[0]), dim=1)
    np.testing.assert_allclose(row, expected.numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("pooling", ["bos", "mean", "late"])
def test_euroberts_classifier(tmp_path: Path, pooling: str) -> None:
    model = save_classifier(tmp_path, "eurobert", num_labels=3, problem_type="regression", classifier_pooling=pooling)
    sequences = random_sequences((1, 9, 70))
    rows = cpu_engine(tmp_path).run(pack(sequences, TaskOptions("classify"))).rows
    np.testing.assert_allclose(rows, logits_of(model, sequences), rtol=0, atol=1e-5)
    edit_config(tmp_path, classifier_pooling="max")
    with pytest.raises(UnsupportedCheckpoint, match="classifier_pooling 'max'"):
        cpu_engine(tmp_path)
