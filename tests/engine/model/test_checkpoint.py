"""Reading of checkpoints, and the messages for those that cannot be read."""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.engine import TaskOptions, load_engine
from penstock.engine.errors import CheckpointError, EngineError, UnsupportedCheckpoint, UnsupportedDevice
from tests.engine.helpers import edit_json, pack, random_sequences, reference_hidden, save_encoder, write_json

SEQUENCES = random_sequences((1, 6, 31, 6))


@pytest.fixture
def bert(tmp_path: Path) -> tuple[Any, Path]:
    """A random BERT and its directory, free to be spoiled."""
    return save_encoder(tmp_path / "bert", "bert"), tmp_path / "bert"


def load(directory: Path, **more: Any) -> Any:
    return load_engine(str(directory), dtype="float32", device="cpu", **more)


def test_unknown_architectures_are_named_and_the_known_ones_listed(bert: tuple[Any, Path]) -> None:
    edit_json(
        bert[1] / "config.json", model_type="deberta", architectures=["DebertaModel"]
    )  # the first one; the later two are known
    with pytest.raises(UnsupportedCheckpoint, match=r"'deberta' \(DebertaModel\).*albert, bart, bert, .*roberta"):
        load(bert[1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_act": "xielu"}, "activation 'xielu'"),
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"is_decoder": True}, "decoders"),
        ({"hidden_size": 64}, r"shape \(130, 48\), but config.json implies"),
        ({"num_hidden_layers": 3}, r"'encoder.layer.2.attention.self.query.weight' is missing"),
        ({"num_attention_heads": "many"}, "'num_attention_heads' must be a positive integer"),
        ({"num_attention_heads": 7}, "7 attention heads"),
    ],
)
def test_configurations_that_do_not_fit_are_refused(bert: tuple[Any, Path], change: dict[str, Any], words: str) -> None:
    edit_json(bert[1] / "config.json", **change)
    with pytest.raises(CheckpointError, match=words):
        load(bert[1])


def test_a_pickle_is_refused_unopened_with_the_way_to_convert(bert: tuple[Any, Path]) -> None:
    directory = bert[1]
    (directory / "model.safetensors").unlink()
    (directory / "pytorch_model.bin").write_bytes(pickle.dumps({}))
    with pytest.raises(CheckpointError, match=r"pytorch_model.bin.*never read.*penstock convert DIR OUT"):
        load(directory)


def test_a_pickle_under_the_name_of_safetensors_is_refused(bert: tuple[Any, Path]) -> None:
    (bert[1] / "model.safetensors").write_bytes(pickle.dumps({"weight": [1.0] * 100}))
    with pytest.raises(CheckpointError, match="damaged or not a safetensors file"):
        load(bert[1])


def test_truncated_weights_are_refused(bert: tuple[Any, Path]) -> None:
    path = bert[1] / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(CheckpointError, match=r"model.safetensors is damaged"):
        load(bert[1])


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_missing_files_are_named(bert: tuple[Any, Path], missing: str) -> None:
    (bert[1] / missing).unlink()
    with pytest.raises(CheckpointError, match=f"{missing} does not exist"):
        load(bert[1])


def test_a_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a directory"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize("more", [{"device": "tpu"}, {"device": "cpu", "dtype": "float8"}])
def test_devices_and_dtypes_that_do_not_exist_are_refused(bert: tuple[Any, Path], more: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedDevice, match="is not available; use auto"):
        load_engine(str(bert[1]), **more)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_named(bert: tuple[Any, Path]) -> None:
    with pytest.raises(UnsupportedDevice, match="torch sees no CUDA GPU"):
        load_engine(str(bert[1]), device="cuda")


def test_shards_are_read(bert: tuple[Any, Path]) -> None:
    model, directory = bert
    expected = load(directory).run(pack(SEQUENCES)).rows
    (directory / "model.safetensors").unlink()
    model.save_pretrained(directory, max_shard_size="40KB")
    assert len(list(directory.glob("model-*.safetensors"))) > 1
    np.testing.assert_array_equal(load(directory).run(pack(SEQUENCES)).rows, expected)


def test_half_precision_weights_are_read(bert: tuple[Any, Path]) -> None:
    directory = bert[1]
    expected = load(directory).run(pack(SEQUENCES)).rows
    tensors = load_file(directory / "model.safetensors")
    save_file({name: tensor.half() for name, tensor in tensors.items()}, directory / "model.safetensors")
    np.testing.assert_allclose(load(directory).run(pack(SEQUENCES)).rows, expected, atol=0.02)


def test_the_limit_of_the_tokenizer_counts_up_to_that_of_the_positions(bert: tuple[Any, Path]) -> None:
    directory = bert[1]
    assert load(directory).info.max_tokens == 130
    write_json(directory / "sentence_bert_config.json", {"max_seq_length": 64})  # of a module, which this is not
    write_json(directory / "tokenizer_config.json", {"model_max_length": 10**30})  # transformers' "no limit"
    assert load(directory).info.max_tokens == 130
    write_json(directory / "tokenizer_config.json", {"model_max_length": 100})
    assert load(directory).info.max_tokens == 100
    write_json(directory / "tokenizer_config.json", {"max_len": 90})
    assert load(directory).info.max_tokens == 90
    for stated in (0, -3, True, "64", [64]):
        write_json(directory / "tokenizer_config.json", {"model_max_length": stated})
        with pytest.raises(CheckpointError, match=r"a limit of .* tokens is stated"):
            load(directory)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", "[" * 100_000, r"config.json cannot be read as JSON: maximum recursion"),
        ("modules.json", "[" * 100_000, "is not a sentence-transformers module list"),
        (
            "modules.json",
            '[{"type": "sentence_transformers.models.Transformer", "path": "\\u0000"}]',
            "is not a sentence-transformers module list",
        ),
        ("model.safetensors.index.json", '{"weight_map": ["a"]}', "`weight_map` must map names of tensors"),
        ("model.safetensors.index.json", '{"weight_map": {"a": 1}}', "`weight_map` must map names of tensors"),
        ("model.safetensors.index.json", f'{{"weight_map": {{"a": "{"x" * 300}.safetensors"}}}}', "File name too long"),
    ],
)
def test_a_damaged_file_is_named(bert: tuple[Any, Path], name: str, content: str, words: str) -> None:
    (bert[1] / "model.safetensors").unlink()  # beside it an index is not read
    bert[1].joinpath(name).write_text(content)
    with pytest.raises(CheckpointError, match=words):
        load(bert[1])


def test_the_revision_follows_the_content_not_the_place(bert: tuple[Any, Path], tmp_path: Path) -> None:
    first = load(bert[1]).info.revision
    copy = shutil.copytree(bert[1], tmp_path / "copy")
    assert load(copy).info.revision == first
    edit_json(copy / "config.json", layer_norm_eps=1e-5)
    assert load(copy).info.revision != first


def sentence_transformer(
    directory: Path, dense: list[tuple[str, Any]], normalize: bool, pooling: dict[str, Any]
) -> Any:
    """A sentence-transformers directory around a random BERT; `dense` is (activation class, Linear) in order."""
    model = save_encoder(directory, "bert")
    modules = [("Transformer", ""), ("Pooling", "1_Pooling")]
    write_json(directory / "1_Pooling" / "config.json", pooling)
    for i, (activation, linear) in enumerate(dense, start=2):
        modules.append(("Dense", f"{i}_Dense"))
        config = {
            "in_features": linear.in_features,
            "out_features": linear.out_features,
            "bias": linear.bias is not None,
        }
        write_json(directory / f"{i}_Dense" / "config.json", config | {"activation_function": activation})
        state = {f"linear.{name}": tensor for name, tensor in linear.state_dict().items()}
        save_file(state, directory / f"{i}_Dense" / "model.safetensors")
    if normalize:
        modules.append(("Normalize", f"{len(modules)}_Normalize"))
    entries = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(modules)
    ]
    (directory / "modules.json").write_text(json.dumps(entries), encoding="utf-8")
    return model


def test_dense_modules_and_normalisation(tmp_path: Path) -> None:
    first, second = torch.nn.Linear(48, 32), torch.nn.Linear(32, 20, bias=False)
    dense = [("torch.nn.modules.activation.Tanh", first), ("torch.nn.modules.linear.Identity", second)]
    model = sentence_transformer(tmp_path, dense, True, {"pooling_mode_cls_token": True})
    engine = load(tmp_path)
    assert engine.info.dim == 20
    with torch.no_grad():
        for sequence, row in zip(SEQUENCES, engine.run(pack(SEQUENCES)).rows, strict=True):
            pooled = torch.from_numpy(reference_hidden(model, sequence)[0])
            expected = torch.nn.functional.normalize(second(torch.tanh(first(pooled))), dim=0).numpy()
            np.testing.assert_allclose(row, expected, atol=1e-5)


@pytest.mark.parametrize(("pooling", "index"), [({"pooling_mode_lasttoken": True}, -1), ({"pooling_mode": "cls"}, 0)])
def test_both_spellings_of_the_pooling_module(tmp_path: Path, pooling: dict[str, Any], index: int) -> None:
    model = sentence_transformer(tmp_path, [], False, pooling)
    for sequence, row in zip(SEQUENCES, load(tmp_path).run(pack(SEQUENCES)).rows, strict=True):
        np.testing.assert_allclose(row, reference_hidden(model, sequence)[index], atol=1e-5)


@pytest.mark.parametrize(
    "pooling",
    [{"pooling_mode": ["cls", "mean"]}, {"pooling_mode_weightedmean_tokens": True}, {"pooling_mode": "attention"}],
)
def test_poolings_that_are_not_implemented_are_refused(tmp_path: Path, pooling: dict[str, Any]) -> None:
    sentence_transformer(tmp_path, [], False, pooling)
    with pytest.raises(UnsupportedCheckpoint, match=r"pooling .* is not implemented"):
        load(tmp_path)


def test_an_activation_class_is_looked_up_not_imported(tmp_path: Path) -> None:
    sentence_transformer(tmp_path, [("os.system", torch.nn.Linear(48, 8))], False, {})
    with pytest.raises(UnsupportedCheckpoint, match=r"activation 'os.system'"):
        load(tmp_path)


def test_modules_outside_the_directory_are_refused(tmp_path: Path) -> None:
    sentence_transformer(tmp_path / "model", [], False, {})
    kinds = {"Transformer": "", "Pooling": "../elsewhere"}
    entries = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in kinds.items()]
    (tmp_path / "model" / "modules.json").write_text(json.dumps(entries), encoding="utf-8")
    with pytest.raises(CheckpointError, match="outside the model's directory"):
        load(tmp_path / "model")


def save_head(path: Path, **metadata: str) -> torch.nn.Linear:
    linear = torch.nn.Linear(48, 3)
    state = {name: tensor.detach().contiguous() for name, tensor in linear.state_dict().items()}
    save_file(state, path, metadata={"labels": json.dumps(["a", "b", "c"])} | metadata)
    return linear


@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
def test_a_linear_head_classifies_embeddings(bert: tuple[Any, Path], tmp_path: Path, scores: str) -> None:
    linear = save_head(tmp_path / "head.safetensors", scores=scores)
    engine = load(bert[1], head=str(tmp_path / "head.safetensors"))
    assert (engine.info.labels, engine.info.tasks) == (("a", "b", "c"), {"embed", "classify"})
    embeddings = np.stack(engine.run(pack(SEQUENCES)).rows)
    with torch.no_grad():
        logits = linear(torch.from_numpy(embeddings))
    expected = torch.softmax(logits, dim=1) if scores == "softmax" else torch.sigmoid(logits)
    rows = np.stack(engine.run(pack(SEQUENCES, TaskOptions("classify"))).rows)
    np.testing.assert_allclose(rows, expected.numpy(), atol=1e-5)


def test_a_label_that_no_reply_can_hold_is_refused(bert: tuple[Any, Path], tmp_path: Path) -> None:
    save_head(tmp_path / "head.safetensors", labels=json.dumps(["a", "\ud800", "c"]))
    with pytest.raises(CheckpointError, match="surrogate"):
        load(bert[1], head=str(tmp_path / "head.safetensors"))


def test_the_head_is_part_of_the_revision(bert: tuple[Any, Path], tmp_path: Path) -> None:
    revisions = {load(bert[1]).info.revision}
    for name in ("one", "two"):
        save_head(tmp_path / f"{name}.safetensors")
        revisions.add(load(bert[1], head=str(tmp_path / f"{name}.safetensors")).info.revision)
    assert len(revisions) == 3


@pytest.mark.parametrize(
    ("metadata", "words"), [({"labels": '["a"]'}, "list of 3 strings"), ({"scores": "magic"}, "not 'magic'")]
)
def test_heads_that_do_not_fit_are_refused(
    bert: tuple[Any, Path], tmp_path: Path, metadata: dict[str, str], words: str
) -> None:
    save_head(tmp_path / "head.safetensors", **metadata)
    with pytest.raises(EngineError, match=words):
        load(bert[1], head=str(tmp_path / "head.safetensors"))


@pytest.mark.parametrize(
    ("name", "tensors", "words"),
    [
        ("missing.safetensors", None, "does not exist"),
        ("head.bin", {}, "must be a safetensors file"),
        ("head.safetensors", {"classifier.weight": [3, 48]}, "`weight` and `bias`. Found: classifier.weight"),
        ("head.safetensors", {"weight": [3, 7], "bias": [3]}, r"\[labels, 48\] .* \(3, 7\) and \(3,\)"),
        ("head.safetensors", {"weight": [3, 48], "bias": [2]}, r"\[labels\]. .* \(3, 48\) and \(2,\)"),
    ],
)
@pytest.mark.parametrize("engine", ["packed", "padded"])
def test_an_error_of_a_head_names_its_file_and_not_the_model(
    bert: tuple[Any, Path], tmp_path: Path, engine: str, name: str, tensors: dict[str, list[int]] | None, words: str
) -> None:
    head = tmp_path / name
    if tensors is not None:
        save_file({key: torch.zeros(shape) for key, shape in tensors.items()}, head)
    with pytest.raises(EngineError, match=words) as raised:
        load(bert[1], head=str(head), engine=engine)
    assert f"The head {head} " in str(raised.value)
    assert str(bert[1]) not in str(raised.value)
