"""`penstock parity` on small random checkpoints: agreement, detection of wrong answers, refusals."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.ops.cli.checks import parity
from penstock.ops.parity import references
from penstock.ops.parity.calls import cosine, distance
from penstock.ops.parity.compare import Check
from penstock.worker.built_in_texts import built_in_texts
from tests.engine.helpers import needs_bfloat16, needs_vnni, write_json
from tests.ops.command_line import penstock
from tests.parity_checkpoints import MISTAKEN, SOUND, add_tokenizer, classifier, edit, sentence_encoder

FLOAT32 = ("--dtype", "float32", "--device", "cpu")
FEW = (  # of the built-in texts, one for each kind of mistake
    "where is my card",
    "Where Is My CARD",
    "where is my café",
    "where [PAD] is my card",
    "the weather is " * 20,
    "\n" * 4100 + "where is my card",
    "where is my card " * 100 + "the weather",
)


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sentences")
    sentence_encoder(directory)
    return directory


@pytest.fixture
def few(tmp_path: Path) -> tuple[str, str]:
    """The option that gives few texts, which take less time than the built-in ones."""
    file = tmp_path / "few.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in FEW))
    return "--texts", str(file)


def report(model: Path, *args: str) -> dict[str, Any]:
    """The JSON report."""
    _, text = penstock("parity", str(model), *FLOAT32, "--json", *args)
    found: dict[str, Any]
    found, _ = json.JSONDecoder().raw_decode(text[text.index("{") :])
    return found


def copy_of(model: Path, target: Path) -> Path:
    shutil.copytree(model, target)
    return target


def test_help_explains_the_exit_code() -> None:
    assert "Exit code 0: all passed. 1: a line missed" in penstock("parity", "--help")[1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", SOUND)
def test_a_sound_checkpoint_agrees(tmp_path: Path, few: tuple[str, str], kind: str) -> None:
    """The sentence encoder on all built-in texts."""
    SOUND[kind](model := tmp_path / "model")
    texts = () if kind == "sentence encoder" else few
    code, text = penstock("parity", str(model), *FLOAT32, *texts)
    assert code == 0, text
    assert "It agrees." in text
    assert "missed" not in text
    untold = "embed_all, embed_sparse, embed_tokens: not compared: SentenceTransformer.encode has no such answer"
    assert (untold in text) == (kind == "bge-m3")


@pytest.mark.slow
@pytest.mark.parametrize("kind", MISTAKEN)
def test_a_checkpoint_that_is_easily_mistaken_is_refused_or_answered_as_its_reference_does(
    tmp_path: Path, few: tuple[str, str], kind: str
) -> None:
    MISTAKEN[kind](tmp_path / "model")
    code, text = penstock("parity", str(tmp_path / "model"), *FLOAT32, *few)
    is_refused = "Error: " in text and "Here it is served by" not in text and "does not agree" not in text
    assert code == 0 or is_refused, text
    assert "Traceback" not in text


def wrong_pooling(model: Path) -> None:
    [config] = model.glob("*_Pooling/config.json")
    edit(config, pooling_mode="cls")


def wrong_tokenizer(model: Path) -> None:
    shutil.rmtree(model / "plain", ignore_errors=True)
    add_tokenizer(model, do_lower_case=False)


def wrong_limit(model: Path) -> None:
    write_json(model / "sentence_bert_config.json", {"max_seq_length": 16, "do_lower_case": False})


def wrong_prompt(model: Path) -> None:
    edit(model / "config_sentence_transformers.json", prompts={"query": "is it: ", "document": ""})


def no_normalize(model: Path) -> None:
    entries = json.loads((model / "modules.json").read_text(encoding="utf-8"))
    write_json(model / "modules.json", entries[:2])


def wrong_weights(model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    [name] = [name for name in tensors if name.endswith("layer.1.attention.self.key.weight")]
    tensors[name] += 0.1 * torch.randn(tensors[name].shape, generator=torch.Generator().manual_seed(0))
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (wrong_pooling, "embed"),
        (wrong_tokenizer, "embed"),
        (wrong_limit, "too long"),
        (wrong_prompt, "embed, prompt query"),
        (no_normalize, "embed"),
        (wrong_weights, "embed"),
    ],
)
def test_a_wrong_answer_here_is_found(
    sentences: Path, tmp_path: Path, few: tuple[str, str], spoil: Any, line: str
) -> None:
    """The checkpoint that is run here differs from the one that the reference loads."""
    spoilt = copy_of(sentences, tmp_path / "spoilt")
    spoil(spoilt)
    found = report(spoilt, "--reference", str(sentences), *few)
    missed = {check["what"] for check in found["checks"] if not check["passed"]}
    assert not found["passed"]
    assert line in missed
    assert ("embed" in missed) == (line != "embed, prompt query")  # a line of its own


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "file", "changes", "lines"),
    [
        (
            "sparse encoder",
            "1_SpladePooling/config.json",
            {"activation_function": "relu"},
            {"embed_sparse", "embed_sparse, prompt query"},
        ),
        (
            "multi-vector encoder",
            "sentence_bert_config.json",
            {"document_length": 30},
            {"embed_tokens, prompt document"},
        ),
    ],
)
def test_a_wrong_sparse_weight_and_a_wrong_number_of_vectors_are_found(
    tmp_path: Path, few: tuple[str, str], kind: str, file: str, changes: dict[str, Any], lines: set[str]
) -> None:
    SOUND[kind](whole := tmp_path / "whole")
    spoilt = copy_of(whole, tmp_path / "spoilt")
    edit(spoilt / file, **changes)
    found = report(spoilt, "--reference", str(whole), *few)
    missed = {check["what"] for check in found["checks"] if not check["passed"]}
    assert missed == lines | {f"{line}, together" for line in lines}


@pytest.mark.slow
def test_labels_of_a_request_are_compared(tmp_path: Path, few: tuple[str, str]) -> None:
    """The checkpoint that is run here takes another class for entailment."""
    SOUND["classifier of inference"](whole := tmp_path / "whole")
    spoilt = copy_of(whole, tmp_path / "spoilt")
    edit(spoilt / "config.json", id2label={"0": "neutral", "1": "entailment", "2": "contradiction"}, label2id=None)
    found = report(spoilt, "--reference", str(whole), *few)
    missed = {check["what"] for check in found["checks"] if not check["passed"]}
    assert {"classify with labels", "classify with labels, multi-label"} < missed
    edit(spoilt / "config.json", id2label={"0": "yes", "1": "no", "2": "maybe"})
    faults = {check["what"]: check["fault"] for check in report(spoilt, "--reference", str(whole), *few)["checks"]}
    assert faults["classify with labels"] == ("pipeline zero-shot-classification answers it, and penstock does not")


@pytest.mark.slow
def test_the_worst_text_is_named_by_its_index(sentences: Path, tmp_path: Path) -> None:
    wrong_tokenizer(spoilt := copy_of(sentences, tmp_path / "spoilt"))
    (tmp_path / "texts.txt").write_text("where is my card\nWHERE IS MY CARD\nmy card\n")
    found = report(spoilt, "--reference", str(sentences), "--texts", str(tmp_path / "texts.txt"))
    [check] = [check for check in found["checks"] if check["what"] == "embed"]
    assert (check["num_texts"], check["worst"]) == (3, 1)


@pytest.mark.slow
def test_texts_of_a_table_and_those_that_are_refused(sentences: Path, tmp_path: Path) -> None:
    rows = [{"message": "where is my card"}, {"message": ""}, {"message": "the weather"}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ("--texts", str(tmp_path / "in.jsonl"), "--column", "message")
    found = report(sentences, *given)
    assert found["passed"]
    assert found["reference"] == "SentenceTransformer.encode"
    assert found["checks"][0]["num_texts"] == 2
    assert found["checks"][0]["refused"] == {"1": "penstock: empty: Text 0 is empty."}
    code, text = penstock("parity", str(sentences), *FLOAT32, *given[:2], "--column", "other")
    assert code == 2
    assert "--texts" in text


@needs_vnni
@pytest.mark.slow
def test_eight_bits_are_told_beside_sixteen(sentences: Path, tmp_path: Path) -> None:
    classifier(tmp_path, hidden_size=128, intermediate_size=256)
    found = report(tmp_path, "--dtype", "int8")
    scores = found["checks"][0]
    assert found["dtype"] == "int8"
    assert scores["bound"] == pytest.approx(0.02)
    assert scores["passed"] == (scores["distance"] <= scores["bound"])
    assert 0 < scores["theirs"]["distance"] < scores["distance"]  # bfloat16
    assert scores["labels_changed"] in range(scores["num_texts"])
    assert scores["theirs"]["labels_changed"] in range(scores["num_texts"])
    code, text = penstock("parity", str(sentences), "--dtype", "int8", "--device", "cpu")  # the down products alone
    assert code == 0, text
    beside = r"\(transformers in bfloat16: [\de.-]+, cos min 0\.\d+, [\d.]+% of neighbours kept\)"
    assert re.search(rf"{beside} +[\d.]+% of neighbours kept", text)


@pytest.mark.slow
def test_vectors_are_told_with_their_neighbours(sentences: Path) -> None:
    vectors = report(sentences)["checks"][0]
    assert vectors["kept"] > 0.99  # texts that differ in case alone are as near
    assert 0.999999 < vectors["cosine_min"] <= vectors["cosine_mean"]


@needs_bfloat16
@pytest.mark.slow
def test_bfloat16_is_judged_beside_transformers_own(sentences: Path, few: tuple[str, str]) -> None:
    code, text = penstock("parity", str(sentences), "--dtype", "bfloat16", "--device", "cpu", *few)
    assert code == 0, text
    assert "transformers in bfloat16" in text


@pytest.mark.slow
def test_a_missing_reference_is_named_with_the_way_out(sentences: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "find_spec", lambda name: None)
    code, text = penstock("parity", str(sentences), *FLOAT32)
    assert code == 1
    assert "sentence-transformers, which is not installed: pip install 'penstock[parity]'" in text


def test_a_base_install_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity, "find_spec", lambda name: None)
    code, text = penstock("parity", str(tmp_path))
    assert code == 1
    assert "torch and sentence-transformers, which are not installed: pip install 'penstock[parity]'" in text


@pytest.mark.slow
def test_code_that_comes_with_a_checkpoint_is_not_run(tmp_path: Path, few: tuple[str, str]) -> None:
    model, trap = tmp_path / "model", tmp_path / "was_run"
    SOUND["encoder"](model)
    (model / "modeling_own.py").write_text(f"open({str(trap)!r}, 'w')\n")
    edit(model / "config.json", auto_map={"AutoModel": "modeling_own.OwnModel"})
    code, text = penstock("parity", str(model), *FLOAT32, *few)
    assert not trap.exists()
    assert code == 0, text


@pytest.mark.slow
def test_pickles_are_not_read(sentences: Path, tmp_path: Path) -> None:
    shutil.copy(sentences / "config.json", tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"anything")
    code, text = penstock("parity", str(tmp_path), *FLOAT32)
    assert code == 1
    assert "only pickles" in text


@pytest.mark.parametrize(
    ("args", "says"), [((), "Missing argument 'MODEL'"), (("m", "--dtype", "int4"), "--dtype (or PENSTOCK_DTYPE)")]
)
def test_bad_usage(args: tuple[str, ...], says: str) -> None:
    code, text = penstock("parity", *args)
    assert code == 2
    assert says in text


@pytest.mark.parametrize(
    ("task", "got", "want"),
    [
        ("embed", [float("nan"), 1.0], [0.0, 1.0]),
        ("embed", [1.0], [0.0, 1.0]),
        ("classify", {"a": 1.0}, {"b": 1.0}),
        ("embed_tokens", np.ones((2, 3)), np.ones((1, 3))),
        ("embed_sparse", {"3": 1.0, "7": float("nan")}, {"3": 1.0}),
        ("classify", {"a": float("nan")}, {"a": 1.0}),
        ("classify", {"a": 1.0, "b": float("nan")}, {"a": 1.0, "b": 1.0}),
        ("token_classify", [(0, 1, {"a": 1.0})], [(0, 2, {"a": 1.0})]),
    ],
)
def test_what_cannot_be_compared_does_not_pass(task: str, got: Any, want: Any) -> None:
    assert distance(task, got, want) == float("inf")
    assert not Check("", 1, distance(task, got, want), bound=1e9).passed


def test_vectors_of_other_lengths_are_apart_though_their_cosine_is_1() -> None:
    assert distance("embed", np.array([2.0, 0.0]), np.array([1.0, 0.0])) == 1.0


def test_the_worst_vector_of_the_tokens_counts() -> None:
    got, want = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[1.0, 0.0], [0.0, 2.0]])
    assert distance("embed_tokens", got, want) == 0.5
    assert cosine(np.array([[1.0, 0.0], [3.0, 4.0]]), want) == 0.8


def test_a_token_id_that_one_side_lacks_has_weight_0() -> None:
    assert distance("embed_sparse", {"3": 2.0, "7": 0.5}, {"3": 2.0}) == 0.25
    assert distance("embed_sparse", {}, {"3": 0.5}) == 0.5
    assert distance("embed_sparse", {}, {}) == 0.0


def test_nothing_compared_is_no_agreement() -> None:
    assert not Check("embed", 0).passed


def test_the_built_in_texts_have_what_tokenizers_treat_differently() -> None:
    texts = built_in_texts(["[PAD]", "[SEP]"], lambda text: len(text.split()), 300)
    for part in ("[PAD]", "[SEP]", "CARD", "é", "漢字", "👍", "\n"):
        assert any(part in text for text in texts)
    assert "" in texts
    assert max(len(text.split()) for text in texts) > 300
    assert any(text.startswith("\n" * 4100) and text.endswith("where is my card") for text in texts)
