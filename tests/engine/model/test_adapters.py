"""LoRA adapters beside a model, against its modules with the adapter's product added to what they give."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from penstock.engine import TaskOptions, load_engine
from penstock.engine.errors import CheckpointError, UnsupportedCheckpoint
from penstock.engine.model.checkpoint import revision_of
from penstock.engine.vector_rows import split_sparse
from tests.engine.generation.helpers import save_seq2seq
from tests.engine.helpers import (
    config_of,
    cpu_engine,
    edit_json,
    pack,
    random_sequences,
    randomise,
    reference_hidden,
    save_classifier,
    save_encoder,
    write_json,
)

pytestmark = pytest.mark.slow

_AUTO_MASKED: Any = transformers.AutoModelForMaskedLM  # transformers leaves from_config untyped

RANK, ALPHA = 3, 7
BERT = ("query", "dense", "word_embeddings")
CONFIG: dict[str, Any] = {  # as PEFT saves it
    "alpha_pattern": {},
    "auto_mapping": None,
    "base_model_name_or_path": "some/where",
    "bias": "none",
    "eva_config": None,
    "exclude_modules": None,
    "fan_in_fan_out": False,
    "inference_mode": True,
    "init_lora_weights": True,
    "layers_pattern": None,
    "layers_to_transform": None,
    "loftq_config": {},
    "lora_alpha": ALPHA,
    "lora_bias": False,
    "lora_dropout": 0.05,
    "megatron_config": None,
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "peft_type": "LORA",
    "r": RANK,
    "rank_pattern": {},
    "revision": None,
    "target_modules": list(BERT),
    "task_type": "FEATURE_EXTRACTION",
    "use_dora": False,
    "use_rslora": False,
}


def add_adapter(directory: Path, model: Any, targets: Sequence[str], prefix: str = "", **config: Any) -> None:
    """Save a random adapter beside a model, and let the model in memory compute with it.

    prefix: of the adapter's names, before those of the model's modules.
    """
    scale = config.pop("scale", ALPHA / RANK)
    generator, tensors = torch.Generator().manual_seed(1), {}
    for name, module in model.named_modules():
        if not f".{name}".endswith(tuple(f".{target}" for target in targets)):
            continue
        rows, columns = module.weight.shape
        is_table = isinstance(module, torch.nn.Embedding)
        into, out = (rows, columns) if is_table else (columns, rows)
        first = torch.randn(RANK, into, generator=generator) / 8
        second = torch.randn(out, RANK, generator=generator) / 8
        halves = ("lora_embedding_A", "lora_embedding_B") if is_table else ("lora_A.weight", "lora_B.weight")
        for half, tensor in zip(halves, (first, second), strict=True):
            tensors[f"base_model.model.{prefix}{name}.{half}"] = tensor

        def add(module: Any, given: Any, result: Any, first: Any = first, second: Any = second) -> Any:
            inner = first.T[given[0]] if isinstance(module, torch.nn.Embedding) else given[0] @ first.T
            return result + scale * inner @ second.T

        module.register_forward_hook(add)
    assert tensors
    save_file(tensors, directory / "adapter_model.safetensors")
    write_json(directory / "adapter_config.json", CONFIG | {"target_modules": list(targets)} | config)


def assert_equal_to(directory: Path, model: Any) -> None:
    engine, sequences = cpu_engine(directory), random_sequences((5, 40, 1))
    expected = [reference_hidden(model, sequence) for sequence in sequences]
    pooled = [hidden[-1] if engine._tail.pooling == "last" else hidden.mean(axis=0) for hidden in expected]
    np.testing.assert_allclose(engine.run(pack(sequences)).rows, pooled, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "targets"),
    [
        ("bert", BERT),
        ("xlm-roberta", ("query", "value")),
        ("qwen3", ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")),
        # Saved as published, with one product in place of some that the adapter changes.
        ("jina_embeddings_v3", ("q_proj", "v_proj", "o_proj", "fc1", "fc2", "word_embeddings")),
        ("nomic_bert", ("q_proj", "k_proj", "o_proj", "gate_proj", "up_proj", "down_proj")),
        ("gte", ("k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")),
    ],
)
def test_a_model_computes_with_the_adapter_beside_it(tmp_path: Path, family: str, targets: Sequence[str]) -> None:
    model = save_encoder(tmp_path, family)
    plain = cpu_engine(tmp_path).run(pack(random_sequences((9,)))).rows[0]
    add_adapter(tmp_path, model, targets)
    assert_equal_to(tmp_path, model)
    assert np.abs(cpu_engine(tmp_path).run(pack(random_sequences((9,)))).rows[0] - plain).max() > 1e-3


def test_published_names_are_those_that_transformers_saves(tmp_path: Path) -> None:
    """Else the products in one would not be tested above."""
    save_encoder(tmp_path, "jina_embeddings_v3")
    assert "encoder.layers.0.mixer.Wqkv.weight" in load_file(tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    "config",
    [
        {"use_rslora": True, "scale": ALPHA / RANK**0.5},
        {"lora_alpha": 0.5, "scale": 0.5 / RANK},
        {"lora_alpha": None, "scale": 8 / RANK},
        {"init_lora_weights": "gaussian"},
        {"target_modules": "all-linear"},
    ],
    ids=str,
)
def test_settings_of_the_scale_and_those_without_effect(tmp_path: Path, config: dict[str, Any]) -> None:
    model = save_encoder(tmp_path, "bert")
    add_adapter(tmp_path, model, BERT, **config)
    assert_equal_to(tmp_path, model)


def test_names_may_differ_by_the_prefix_of_either_class(tmp_path: Path) -> None:
    model = save_encoder(tmp_path / "encoder", "bert")
    add_adapter(tmp_path / "encoder", model, BERT, prefix="bert.")
    assert_equal_to(tmp_path / "encoder", model)
    classifier = save_classifier(tmp_path / "classifier", "bert")
    add_adapter(tmp_path / "classifier", classifier.bert, BERT)
    assert_equal_to(tmp_path / "classifier", classifier.bert)


def test_the_adapter_is_part_of_the_revision(tmp_path: Path) -> None:
    model = save_encoder(tmp_path, "bert")
    revisions = {revision_of(tmp_path)}
    add_adapter(tmp_path, model, BERT)
    revisions.add(revision_of(tmp_path))
    edit_json(tmp_path / "adapter_config.json", lora_alpha=1)
    revisions.add(revision_of(tmp_path))
    assert len(revisions) == 3


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("peft_type", "LOHA"),
        ("use_dora", True),
        ("rank_pattern", {"query": 2}),
        ("alpha_pattern", {"query": 2}),
        ("bias", "all"),
        ("lora_bias", True),
        ("fan_in_fan_out", True),
        ("modules_to_save", ["classifier"]),
        ("init_lora_weights", "pissa"),
        ("layers_to_transform", [0]),
        ("layer_replication", [[0, 2]]),
        ("exclude_modules", ["key"]),
        ("target_modules", ".*query"),
        ("target_modules", None),
        ("a_key_of_tomorrow", 1),
    ],
)
def test_what_is_more_than_a_product_is_refused_by_its_key(tmp_path: Path, key: str, value: Any) -> None:
    add_adapter(tmp_path, save_encoder(tmp_path, "bert"), BERT)
    edit_json(tmp_path / "adapter_config.json", **{key: value})
    with pytest.raises(UnsupportedCheckpoint, match=f"{key} .*merge_and_unload"):
        cpu_engine(tmp_path)


QUERY = "base_model.model.encoder.layer.0.attention.self.query"


@pytest.mark.parametrize(
    ("name", "tensor", "reason"),
    [
        (f"{QUERY}.lora_magnitude_vector", torch.ones(48), "'.*lora_magnitude_vector' is not implemented"),
        (f"{QUERY}.lora_A.weight", torch.ones(RANK, 48, dtype=torch.int8), "lora_A.weight' is not implemented"),
        (f"{QUERY}.lora_A.weight", torch.ones(RANK, 50), r"of a matrix \(48, 50\), and .* has \(48, 48\)"),
        (f"{QUERY}.lora_A.weight", torch.full((RANK, 48), torch.inf), "not finite"),
        (f"{QUERY}.lora_B.weight", torch.ones(48, 2), "is not of the rank 3"),
        ("base_model.model.encoder.layer.0.output.dense.lora_embedding_A", torch.ones(RANK, 4), "not two halves"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(tmp_path: Path, name: str, tensor: torch.Tensor, reason: str) -> None:
    add_adapter(tmp_path, save_encoder(tmp_path, "bert"), BERT)
    file = tmp_path / "adapter_model.safetensors"
    save_file(load_file(file) | {name: tensor}, file)
    with pytest.raises(CheckpointError, match=reason):
        cpu_engine(tmp_path)


@pytest.mark.parametrize(
    ("module", "reason"),
    [("encoder.layer.9.attention.self.query", "has no weight of that name"), ("pooler.other", "not among the target")],
)
def test_modules_that_the_model_or_the_config_lacks_are_refused(tmp_path: Path, module: str, reason: str) -> None:
    add_adapter(tmp_path, save_encoder(tmp_path, "bert"), BERT)
    file, halves = tmp_path / "adapter_model.safetensors", {"A": torch.ones(RANK, 48), "B": torch.ones(48, RANK)}
    more = {f"base_model.model.{module}.lora_{half}.weight": tensor for half, tensor in halves.items()}
    save_file(load_file(file) | more, file)
    with pytest.raises(CheckpointError, match=reason):
        cpu_engine(tmp_path)


@pytest.mark.parametrize(
    ("targets", "is_tied"), [(BERT[:2], True), (BERT, False), (BERT, True)], ids=["layers", "untied", "tied"]
)
def test_an_adapter_of_words_leaves_the_logits_of_a_masked_language_model(
    tmp_path: Path, targets: Sequence[str], is_tied: bool
) -> None:
    """PEFT adds its product to what the table gives, and not to the head that shares its memory."""
    model = _AUTO_MASKED.from_config(config_of("bert", tie_word_embeddings=is_tied)).eval()
    randomise(model)
    model.save_pretrained(tmp_path)
    add_adapter(tmp_path, model, targets)
    if "word_embeddings" in targets and is_tied:
        with pytest.raises(UnsupportedCheckpoint, match=r"table of words \(bert\.embeddings\.word_embeddings\)"):
            cpu_engine(tmp_path)
        return
    (ids,) = random_sequences((9,))
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(ids)[None].long()).logits[0]
    expected = torch.log1p(torch.relu(logits)).amax(dim=0).numpy()
    found, weights = split_sparse(cpu_engine(tmp_path).run(pack([ids], TaskOptions("embed_sparse"))).rows[0])
    np.testing.assert_array_equal(found, np.flatnonzero(expected))
    np.testing.assert_allclose(weights, expected[found], atol=1e-5)


@pytest.mark.parametrize("family", ["t5", "umt5", "bart"])
def test_an_adapter_of_a_table_that_no_stack_looks_up_is_refused(tmp_path: Path, family: str) -> None:
    model = save_encoder(tmp_path, family)
    add_adapter(tmp_path, model, ("shared",))
    with pytest.raises(UnsupportedCheckpoint, match=r"table of words \(shared\)"):
        cpu_engine(tmp_path)


def test_padded_models_and_generators_refuse_it(tmp_path: Path) -> None:
    """transformers would leave it out, unless PEFT is installed."""
    add_adapter(tmp_path, save_encoder(tmp_path, "bert"), BERT)
    with pytest.raises(UnsupportedCheckpoint, match="a padded model's adapter is not loaded"):
        load_engine(str(tmp_path), engine="padded", device="cpu")
    generator = tmp_path / "generator"
    add_adapter(generator, save_seq2seq(generator, "t5"), ("q", "v"))
    with pytest.raises(UnsupportedCheckpoint, match="beside a model that generates"):
        load_engine(str(generator), device="cpu")
