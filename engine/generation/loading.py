"""Loading of a generator's weights and options from a model's directory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.engine.errors import UnsupportedCheckpoint
from penstock.engine.families import bart, m2m_100, marian, mbart, pegasus, t5
from penstock.engine.families.readers import refuse_causal
from penstock.engine.generation_options import OPTION_NAMES, GenerationOptions
from penstock.engine.model.admission import GENERATE
from penstock.engine.model.architectures import architectures_of
from penstock.engine.model.checkpoint import Checkpoint, Tensors, read_checkpoint, resolve_model
from penstock.engine.model.files import read_config, read_json
from penstock.engine.model.seq2seq import Seq2SeqWeights

SEQ2SEQ_FAMILIES: Mapping[str, Callable[[Checkpoint], Seq2SeqWeights]] = {
    "bart": bart.seq2seq,
    "m2m_100": m2m_100.seq2seq,
    "marian": marian.seq2seq,
    "mbart": mbart.seq2seq,
    "mt5": t5.seq2seq,
    "pegasus": pegasus.seq2seq,
    "t5": t5.seq2seq,
}
_WIDE = frozenset({"mt5", "pegasus", "t5"})  # trained in bfloat16: their residuals grow from layer to layer
_CONFIG = "generation_config.json"


@dataclass(frozen=True, slots=True)
class Seq2SeqCheckpoint:
    """An encoder-decoder model as its directory describes it."""

    directory: Path  # of the checkpoint
    weights: Seq2SeqWeights
    tensors: Tensors  # that the weights were read from
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
    config = read_config(directory)
    model_type = str(config.get("model_type"))
    known = architectures_of(model_type) if model_type in SEQ2SEQ_FAMILIES else None
    return known is not None and any(name in known.generators for name in config.get("architectures") or ())


def load_seq2seq(model: str) -> Seq2SeqCheckpoint:
    """Read a model directory or Hugging Face id. Raises CheckpointError, UnsupportedCheckpoint."""
    directory = resolve_model(model)
    checkpoint = read_checkpoint(directory)
    model_type = str(checkpoint.config["model_type"])
    if checkpoint.task != GENERATE:
        raise UnsupportedCheckpoint(
            f"{directory}: model_type {model_type!r} does not generate here: it is for {checkpoint.task}. "
            f"Supported model types, with the head that generates: {', '.join(sorted(SEQ2SEQ_FAMILIES))}."
        )
    refuse_causal(checkpoint, has_decoder=True)
    weights = SEQ2SEQ_FAMILIES[model_type](checkpoint)
    checkpoint.weights.require_layers_used()
    config = _generation_config(checkpoint)
    return Seq2SeqCheckpoint(checkpoint.directory, weights, checkpoint.weights, config, model_type in _WIDE)


def _generation_config(checkpoint: Checkpoint) -> Mapping[str, Any]:
    path = checkpoint.root / _CONFIG
    if path.exists():
        return read_json(path)
    from transformers import GenerationConfig  # slow to import, and few checkpoints have no such file

    # An old config.json has them among the model's, as transformers reads it.
    known = {*OPTION_NAMES, *vars(GenerationConfig.from_dict({}))}
    return {name: value for name, value in checkpoint.config.items() if name in known}
