"""Encoders of T5, mT5 and umT5: their settings, whole models below modules, and where they run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer

from penstock.engine import TaskOptions, from_torch, load_engine
from penstock.engine.device import gpu_precision
from penstock.engine.errors import CheckpointError, UnsupportedCheckpoint
from penstock.engine.families import FAMILIES
from penstock.engine.padded.loading import _precision
from tests.engine.helpers import (
    MAX_TOKENS,
    config_of,
    cpu_engine,
    edit_json,
    edited_tensors,
    pack,
    random_sequences,
    randomise,
    reference_hidden,
    save_encoder,
    save_tokenizer,
    write_json,
)

pytestmark = pytest.mark.slow

LENGTHS = (1, 2, 40, 41, MAX_TOKENS)  # 40: the distance from which on a bias is shared
WORDS = ["where", "is", "my", "card"]


@pytest.mark.parametrize("family", ["t5", "mt5", "umt5"])
@pytest.mark.parametrize(
    "config",
    [
        {"feed_forward_proj": "relu"},
        {"feed_forward_proj": "gated-gelu"},  # whose function is gelu_new
        {"feed_forward_proj": "gated-silu"},
        {"feed_forward_proj": "gelu"},
        {"d_kv": 12},
        {"d_kv": 20, "num_heads": 3},
        {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20},
        {"layer_norm_epsilon": 1e-6, "d_kv": 8},
        {"tie_word_embeddings": False},  # of the decoder's head alone
    ],
    ids=str,
)
def test_settings_that_change_the_arithmetic(tmp_path: Path, family: str, config: dict[str, Any]) -> None:
    model, sequences = save_encoder(tmp_path, family, **config), random_sequences(LENGTHS)
    rows = cpu_engine(tmp_path).run(pack(sequences, TaskOptions("embed", "max"))).rows
    expected = [reference_hidden(model, sequence).max(axis=0) for sequence in sequences]
    np.testing.assert_allclose(rows, expected, rtol=0, atol=1e-5)


def test_settings_by_the_names_that_transformers_has_for_all_models(tmp_path: Path) -> None:
    model, sequences = save_encoder(tmp_path, "t5"), random_sequences(LENGTHS)
    file = tmp_path / "config.json"
    names = {"d_model": "hidden_size", "num_heads": "num_attention_heads", "num_layers": "num_hidden_layers"}
    config = json.loads(file.read_text(encoding="utf-8"))
    write_json(file, {names.get(name, name): value for name, value in config.items()})
    rows = cpu_engine(tmp_path).run(pack(sequences, TaskOptions("embed", "last"))).rows
    expected = [reference_hidden(model, sequence)[-1] for sequence in sequences]
    np.testing.assert_allclose(rows, expected, rtol=0, atol=1e-5)


def test_tensors_with_a_classifiers_prefix_run_padded(tmp_path: Path) -> None:
    model, sequences = save_encoder(tmp_path, "t5"), random_sequences(LENGTHS)
    with edited_tensors(tmp_path) as tensors:
        for name in list(tensors):
            tensors["transformer." + name] = tensors.pop(name)
    engine = load_engine(str(tmp_path), dtype="float32", device="cpu", engine="auto")
    assert engine.info.padded
    rows = engine.run(pack(sequences, TaskOptions("embed", "last"))).rows
    expected = [reference_hidden(model, sequence)[-1] for sequence in sequences]
    np.testing.assert_allclose(rows, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["T5Model", "T5ForConditionalGeneration"])
def test_a_whole_model_below_modules_is_its_encoder(tmp_path: Path, kind: str) -> None:
    model = getattr(transformers, kind)(config_of("t5", num_decoder_layers=3)).eval()
    randomise(model)
    model.save_pretrained(tmp_path)
    save_tokenizer(tmp_path, WORDS)
    names = {"": "Transformer", "1_Pooling": "Pooling"}
    entries = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{one}"}
        for i, (path, one) in enumerate(names.items())
    ]
    write_json(tmp_path / "modules.json", entries)
    write_json(tmp_path / "1_Pooling" / "config.json", {"word_embedding_dimension": 48})
    reference = SentenceTransformer(str(tmp_path), device="cpu")
    texts = ["where is my card", "card"]
    ids = [np.array(reference.tokenizer(text)["input_ids"], np.int32) for text in texts]
    rows = load_engine(str(tmp_path), dtype="float32", device="cpu", engine="auto").run(pack(ids)).rows
    np.testing.assert_allclose(rows, [reference.encode(text) for text in texts], rtol=0, atol=1e-5)
    hidden = from_torch(model, dtype="float32", device="cpu").packed(torch.from_numpy(ids[0]), torch.tensor([0, 6]))
    np.testing.assert_allclose(hidden, reference_hidden(model.encoder, ids[0]), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"is_decoder": True}, UnsupportedCheckpoint, "is_decoder"),
        ({"is_causal": True}, UnsupportedCheckpoint, "is_causal"),
        ({"num_attention_heads": 3}, CheckpointError, "'num_heads' is 4 and 'num_attention_heads' 3"),
        ({"hidden_size": 64}, CheckpointError, "'d_model' is 48 and 'hidden_size' 64"),
        ({"num_hidden_layers": 1}, CheckpointError, "'num_layers' is 2 and 'num_hidden_layers' 1"),
        ({"num_layers": 1}, UnsupportedCheckpoint, r"encoder\.block\.1\..* would not be used"),
        ({"head_dim": 12}, CheckpointError, "'d_kv' is 32 and 'head_dim' 12"),
        ({"vocab_size": 121}, CheckpointError, "config.json implies"),
        ({"relative_attention_num_buckets": 2}, UnsupportedCheckpoint, "2 buckets do not reach"),
        ({"dense_act_fn": "laplace"}, UnsupportedCheckpoint, "activation 'laplace'"),
    ],
    ids=str,
)
def test_what_is_not_implemented_is_refused_by_its_key(
    tmp_path: Path, change: dict[str, Any], error: type[CheckpointError], words: str
) -> None:
    save_encoder(tmp_path, "t5")
    edit_json(tmp_path / "config.json", **change)
    with pytest.raises(error, match=words):
        cpu_engine(tmp_path)


def test_the_table_of_words_may_have_the_encoders_name_alone(tmp_path: Path) -> None:
    save_encoder(tmp_path, "t5")
    batch = pack(random_sequences(LENGTHS))
    expected = cpu_engine(tmp_path).run(batch).rows
    with edited_tensors(tmp_path) as tensors:
        tensors["encoder.embed_tokens.weight"] = tensors.pop("shared.weight")
    np.testing.assert_array_equal(cpu_engine(tmp_path).run(batch).rows, expected)


def test_two_tables_of_words_are_refused(tmp_path: Path) -> None:
    save_encoder(tmp_path, "t5")
    with edited_tensors(tmp_path) as tensors:
        tensors["encoder.embed_tokens.weight"] = tensors["shared.weight"] + 1
    with pytest.raises(UnsupportedCheckpoint, match="are one table"):
        cpu_engine(tmp_path)


@pytest.mark.parametrize(
    ("stated", "expected"),
    [({}, 512), ({"n_positions": 64}, 64), ({"n_positions": 64, "max_position_embeddings": 40}, 40)],
)
def test_the_longest_text_where_a_model_without_positions_states_it_nowhere_else(
    tmp_path: Path, stated: dict[str, int], expected: int
) -> None:
    save_encoder(tmp_path, "t5")
    edit_json(tmp_path / "config.json", **({"max_position_embeddings": None} | stated))
    assert cpu_engine(tmp_path).info.max_tokens == expected


@pytest.mark.parametrize(
    ("model_type", "dtype", "expected"),
    [
        ("t5", "auto", "bfloat16"),
        ("mt5", "float16", "float16"),
        ("umt5", "auto", "bfloat16"),
        ("bert", "auto", "float16"),
    ],
)
def test_a_gpu_computes_in_bfloat16_what_was_trained_in_it(model_type: str, dtype: str, expected: str) -> None:
    assert gpu_precision(dtype, overflows_float16=FAMILIES[model_type].overflows_float16) == expected
    assert _precision(dtype, model_type, on_gpu=True) == expected  # of the padded engine
