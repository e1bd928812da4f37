"""Checkpoints of which transformers would fill tensors at random are refused: by a setting, or as a tensor is gone."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import transformers
from safetensors.torch import load_file, save_file

from penstock.engine import load_engine
from penstock.engine.errors import CheckpointError
from penstock.engine.families import FAMILIES as READERS
from penstock.engine.generation.loading import load_seq2seq
from tests.engine.generation import helpers as generation
from tests.engine.helpers import FAMILIES, config_of, randomise, write_json

pytestmark = pytest.mark.slow

_AUTO: Mapping[str, Any] = {
    "encoder": transformers.AutoModel,
    "half": transformers.AutoModelForTextEncoding,
    "classifier": transformers.AutoModelForSequenceClassification,
    "masked": transformers.AutoModelForMaskedLM,
    "generator": transformers.AutoModelForSeq2SeqLM,
}
KINDS = [
    *(("half" if family in ("mt5", "t5", "umt5") else "encoder", family) for family in FAMILIES),
    ("classifier", "bart"),
    *(("masked", family) for family in FAMILIES if READERS[family].masked_lm),
    *(("generator", family) for family in generation.FAMILIES),
]
_TABLES = ("embed", "shared", "lm_head", "decoder.weight", "decoder.bias", "vocab_projector")  # outside of layers


def _changes(names: list[str]) -> Iterator[tuple[dict[str, Any], set[str]]]:
    """Settings by which a model has other tensors, and names of tensors that are left out beside them."""
    tables = {name for name in names if any(part in name for part in _TABLES)}
    words = {name for name in tables if "embed_tokens" in name}
    for stated in ({"tie_word_embeddings": True}, {"tie_word_embeddings": False}):
        yield from ((stated, left_out) for left_out in (set(), words, *({name} for name in sorted(tables))))
    yield {"is_gated_act": None}, set()


@pytest.mark.parametrize(("kind", "family"), KINDS)
def test_what_transformers_fills_at_random_is_refused(tmp_path: Path, kind: str, family: str) -> None:
    """The model is saved with a table for each of its uses, so that any of them can be left out."""
    if kind == "generator":
        make, values = generation.CONFIGS[family]
        config = make(**(values | {"tie_word_embeddings": False}))
    else:
        config = config_of(family, tie_word_embeddings=False)
    model = _AUTO[kind].from_config(config)
    randomise(model)
    model.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    tensors = load_file(tmp_path / "model.safetensors")
    for stated, left_out in _changes(sorted(tensors)):
        write_json(tmp_path / "config.json", written | stated)
        kept = {name: tensor for name, tensor in tensors.items() if name not in left_out}
        save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
        if _is_answered(kind, tmp_path):
            assert not _filled(type(model), tmp_path) - _harmless(family), (stated, left_out)


def _is_answered(kind: str, directory: Path) -> bool:
    try:
        if kind == "generator":
            load_seq2seq(str(directory))
        else:
            load_engine(str(directory), dtype="float32", device="cpu")
    except CheckpointError:
        return False
    return True


def _filled(model_class: Any, directory: Path) -> set[str]:
    """The tensors that transformers initialises; none where it refuses the checkpoint itself."""
    try:
        _, report = model_class.from_pretrained(directory, output_loading_info=True)
    except Exception:  # transformers has no tree of errors: of a setting's type, of a tensor's shape and others
        return set()
    return {name.removeprefix("model.") for name in report["missing_keys"] if "pooler" not in name}  # which is not used


def _harmless(family: str) -> set[str]:
    """The table beside two stacks with tables of their own, the bias beside an untied one; positions are computed."""
    positions = {f"{stack}.embed_positions.weight" for stack in ("encoder", "decoder")}
    return {"shared.weight", "lm_head.bias", *(positions if family in ("marian", "marian-untied", "pegasus") else ())}
