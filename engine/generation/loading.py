"""Loading of a generator's weights and options from a model's directory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.engine.errors import UnsupportedCheckpoint
from penstock.engine.families import bart, marian, t5
from penstock.engine.generation_options import OPTION_NAMES, GenerationOptions
from penstock.engine.model.checkpoint import Checkpoint, read_checkpoint, read_json, resolve_model
from penstock.engine.model.seq2seq import Seq2SeqWeights

SEQ2SEQ_FAMILIES: Mapping[str, Callable[[Checkpoint], Seq2SeqWeights]] = {
    "bart": bart.seq2seq,
    "marian": marian.seq2seq,
    "mt5": t5.seq2seq,
    "t5": t5.seq2seq,
}
_WIDE = frozenset({"mt5", "t5"})  # trained in bfloat16: their residuals grow from layer to layer
_HEADS = ("ForConditionalGeneration", "MarianMTModel")
_CONFIG = "generation_config.json"


@dataclass(frozen=True, slots=True)
class Seq2SeqCheckpoint:
    """An encoder-decoder model as its directory describes it."""

    directory: Path  # holds tokenizer.json
    weights: Seq2SeqWeights
    generation_config: Mapping[str, Any]
    overflows_float16: bool  # whether hidden states may exceed the range of float16

    def options(self, **changes: Any) -> GenerationOptions:
        """The model's own options with some changed, by their names in generation_config.json. Raises InvalidOption."""
        return GenerationOptions.of({**self.generation_config, **changes})


def generates(model: str) -> bool:
    """Whether a model directory or Hugging Face id is an encoder-decoder with a head that generates.

    Raises CheckpointError where there is no model.
    """
    directory = resolve_model(model)
    if (directory / "modules.json").exists():  # an embedding model of sentence-transformers
        return False
    config = read_json(directory / "config.json")
    architectures = map(str, config.get("architectures") or ())
    return str(config.get("model_type")) in SEQ2SEQ_FAMILIES and any(name.endswith(_HEADS) for name in architectures)


def load_seq2seq(model: str) -> Seq2SeqCheckpoint:
    """Read a model directory or Hugging Face id. Raises CheckpointError, UnsupportedCheckpoint."""
    directory = resolve_model(model)
    checkpoint = read_checkpoint(directory)
    model_type = str(checkpoint.config.get("model_type"))
    reader = SEQ2SEQ_FAMILIES.get(model_type)
    if reader is None:
        raise UnsupportedCheckpoint(
            f"{directory}: model_type {model_type!r} does not generate here. "
            f"Supported model types: {', '.join(sorted(SEQ2SEQ_FAMILIES))}."
        )
    config = _generation_config(checkpoint)
    return Seq2SeqCheckpoint(checkpoint.directory, reader(checkpoint), config, model_type in _WIDE)


def _generation_config(checkpoint: Checkpoint) -> Mapping[str, Any]:
    path = checkpoint.root / _CONFIG
    if path.exists():
        return read_json(path)
    # An old config.json has them among the model's, as transformers reads it.
    return {name: value for name, value in checkpoint.config.items() if name in OPTION_NAMES}
