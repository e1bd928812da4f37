"""`penstock parity` on small random checkpoints: agreement, disagreement, and rejected checkpoints."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.ops.cli.checks.parity import ParitySettings
from penstock.ops.cli.setting_options import option_name
from penstock.ops.parity.compare import Agreement, Check
from tests.engine.helpers import save_classifier, save_encoder, save_tagger, write_json
from tests.ops.test_cli import no_settings_from_outside, penstock

pytestmark = pytest.mark.slow

__all__ = ["no_settings_from_outside"]  # a fixture that is used by being here

QUICK = ("--device", "cpu", "--packs", "3")
LINES = (
    "1 token ",
    "2 tokens",
    "127 tokens",
    "128 tokens",
    "129 tokens",
    "130 tokens",
    "random packs",
    "alone vs pack",
)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bert")
    save_encoder(directory, "bert")
    return directory


def perturbed(original: Path, copy: Path, tensor: str) -> Path:
    """A copy of a checkpoint in which a tenth of one tensor is noise."""
    shutil.copytree(original, copy, dirs_exist_ok=True)
    tensors = load_file(copy / "model.safetensors")
    (name,) = (name for name in tensors if name.endswith(tensor))
    noise = torch.randn(tensors[name].shape, generator=torch.Generator().manual_seed(0))
    tensors[name] += 0.1 * tensors[name].std() * noise
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    return copy


def test_help_explains_every_setting() -> None:
    code, text = penstock("parity", "--help")
    assert code == 0
    assert "Exit code 0: all passed. 1: a line missed" in text
    for name, field in ParitySettings.model_fields.items():
        assert field.description
        assert f" {option_name(name)} " in text
        assert " ".join(field.description.split()) in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("save", "family", "config", "results"),
    [
        (save_encoder, "deberta-v2", {}, "vectors"),
        (save_classifier, "roberta", {"num_labels": 1}, "scores"),
        (save_classifier, "bert", {"num_labels": 5}, "scores"),
        (save_tagger, "electra", {"num_labels": 3}, "token scores"),
    ],
)
def test_a_sound_checkpoint_agrees(
    tmp_path: Path, save: Callable[..., Any], family: str, config: dict[str, Any], results: str
) -> None:
    save(tmp_path, family, **config)
    code, text = penstock("parity", str(tmp_path), "--dtype", "float32", *QUICK)
    assert code == 0, text
    assert all(line in text for line in (*LINES, results, f": {family}, float32 on cpu", "It agrees"))
    assert "missed" not in text
    assert "transformers float32" not in text  # the reference is not compared with itself


def test_bfloat16_is_judged_beside_transformers_own(bert: Path) -> None:
    code, text = penstock("parity", str(bert), "--dtype", "bfloat16", *QUICK)
    assert code == 0, text
    assert "penstock transformers bfloat16" in text
    assert "cos min mean error cos min mean error" in text


@pytest.mark.slow
def test_the_same_seed_gives_the_same_numbers(bert: Path) -> None:
    once, again, other = (
        penstock("parity", str(bert), "--dtype", "bfloat16", *QUICK, "--seed", seed)[1] for seed in ("7", "7", "8")
    )
    assert once == again != other


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tensor", ["layer.1.attention.self.key.weight", "embeddings.position_embeddings.weight"])
def test_a_copy_with_one_broken_tensor_misses(bert: Path, tmp_path: Path, tensor: str, dtype: str) -> None:
    broken = perturbed(bert, tmp_path / "copy", tensor)
    code, text = penstock("parity", str(broken), "--reference", str(bert), "--dtype", dtype, *QUICK)
    assert code == 1, text
    assert "It does not agree" in text
    assert "random packs: a cosine of 0." in text
    assert "alone vs pack:" not in text  # it is consistently wrong


def test_a_sound_copy_agrees_with_its_original(bert: Path, tmp_path: Path) -> None:
    shutil.copytree(bert, tmp_path / "copy")
    args = ("--reference", str(bert), "--dtype", "float32", *QUICK)
    code, text = penstock("parity", str(tmp_path / "copy"), *args)
    assert code == 0, text
    assert f"beside transformers of {bert} in float32" in text


def test_a_broken_head_misses_in_its_line_alone(tmp_path: Path) -> None:
    save_classifier(tmp_path / "original", "bert", num_labels=4)
    broken = perturbed(tmp_path / "original", tmp_path / "copy", "classifier.weight")
    code, text = penstock(
        "parity", str(broken), "--reference", str(tmp_path / "original"), "--dtype", "float32", *QUICK
    )
    assert code == 1, text
    assert "It does not agree: 1 of 9 lines missed. scores: a cosine of" in text


def test_another_model_is_no_original(bert: Path, tmp_path: Path) -> None:
    save_encoder(tmp_path, "bert", vocab_size=60)
    code, text = penstock("parity", str(bert), "--reference", str(tmp_path), "--dtype", "float32", *QUICK)
    assert code == 1
    assert "is another model: its vocab_size is 60, and that of MODEL is 120." in text


def test_a_reference_without_the_head_is_refused(bert: Path, tmp_path: Path) -> None:
    save_classifier(tmp_path, "bert")
    code, text = penstock("parity", str(tmp_path), "--reference", str(bert), "--dtype", "float32", *QUICK)
    assert code == 1
    assert "has no head to classify with." in text


def test_an_unknown_architecture_is_refused_with_what_is_supported(bert: Path, tmp_path: Path) -> None:
    shutil.copytree(bert, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    write_json(tmp_path / "config.json", config | {"model_type": "gpt2", "architectures": ["GPT2Model"]})
    code, text = penstock("parity", str(tmp_path), *QUICK)
    assert code == 1
    assert "model_type 'gpt2' (GPT2Model) is not implemented. Supported model types: albert, bert," in text
    assert "Traceback" not in text


def test_code_that_comes_with_a_checkpoint_is_not_run(bert: Path, tmp_path: Path) -> None:
    shutil.copytree(bert, tmp_path / "copy")
    trap = tmp_path / "was_run"
    (tmp_path / "copy" / "modeling_own.py").write_text(f"open({str(trap)!r}, 'w')\n")
    config = json.loads((tmp_path / "copy" / "config.json").read_text())
    own = {"AutoModel": "modeling_own.OwnModel", "AutoConfig": "modeling_own.OwnConfig"}
    write_json(tmp_path / "copy" / "config.json", config | {"auto_map": own})
    code, text = penstock("parity", str(tmp_path / "copy"), "--dtype", "float32", *QUICK)
    assert not trap.exists()
    assert code == 0, text


def test_pickles_are_not_read(bert: Path, tmp_path: Path) -> None:
    shutil.copy(bert / "config.json", tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"anything")
    code, text = penstock("parity", str(tmp_path), *QUICK)
    assert code == 1
    assert "only pickles" in text


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "Missing argument 'MODEL'"),
        (("m", "--dtype", "int4"), "--dtype (or PENSTOCK_DTYPE)"),
        (("m", "--packs", "0"), "--packs (or PENSTOCK_PACKS)"),
    ],
)
def test_bad_usage(args: tuple[str, ...], says: str) -> None:
    code, text = penstock("parity", *args)
    assert code == 2
    assert says in text


def test_what_is_not_a_number_does_not_pass() -> None:
    overflown = Agreement(float("nan"), float("nan"), float("nan"))
    assert not Check("1 token", 1, overflown, None, needed=0.9999).passed
