"""An encoder-decoder model for a worker: its facts, the options that it allows, and its generator."""

from collections.abc import Mapping
from typing import Any

from penstock.engine.device import missing_for_gpu
from penstock.engine.errors import UnsupportedDevice
from penstock.engine.generation.generator import Generator
from penstock.engine.generation.limits import GeneratorLimits
from penstock.engine.generation.loading import Seq2SeqCheckpoint, load_seq2seq
from penstock.engine.generation.options import GenerationOptions
from penstock.engine.loading import default_name
from penstock.engine.model.checkpoint import resolve_model, revision_of
from penstock.engine.types import ModelInfo


class GenerationModel:
    """Made by `load_generation_model`."""

    def __init__(self, checkpoint: Seq2SeqCheckpoint, name: str, revision: str, limits: GeneratorLimits) -> None:
        weights = checkpoint.weights
        self._checkpoint = checkpoint
        self.limits = limits
        self.info = ModelInfo(
            name=name,
            revision=revision,
            dtype="float32",
            device="cpu",
            vocab_size=weights.source_vocab_size,
            max_tokens=min(filter(None, (limits.max_source_tokens, weights.max_source_tokens))),
            tasks=frozenset({"generate"}),
            dim=weights.encoder.embeddings.words.shape[1],
            labels=(),
        )

    def options(self, changes: Mapping[str, Any]) -> GenerationOptions:
        """The model's own options with some changed, by their names in generation_config.json.

        Raises InvalidOption, which names the option, where the model or the limits do not allow it.
        """
        options = self._checkpoint.options(**changes)
        self.limits.require_options(options, self._checkpoint.weights)
        return options

    def generator(self, threads: int) -> Generator:
        """A generator with its pages. threads: of its matrix products."""
        return Generator(self._checkpoint.weights, self.limits, threads)


def load_generation_model(
    model: str,
    *,
    name: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    max_rows: int | None = None,
    max_encode_tokens: int | None = None,
) -> GenerationModel:
    """Load a model directory or Hugging Face id whose checkpoint `generates`. Blocks for seconds.

    name: the model's name in requests; `default_name` when None. max_rows, max_encode_tokens: see `GeneratorLimits`.
    Raises CheckpointError, UnsupportedCheckpoint, UnsupportedDevice; and InvalidOption where one of the model's own
    options is not implemented, since every request would be rejected.
    """
    if device == "cuda":
        reason = missing_for_gpu() or "generation is implemented on the CPU only"
        raise UnsupportedDevice(f"device 'cuda' is not available for a model that generates: {reason}.")
    if dtype not in ("auto", "float32"):
        raise UnsupportedDevice(f"dtype {dtype!r} is not available for a model that generates; use auto or float32.")
    given = {"max_rows": max_rows, "max_encode_tokens": max_encode_tokens}
    limits = GeneratorLimits(**{field: value for field, value in given.items() if value is not None})
    checkpoint, revision = load_seq2seq(model), revision_of(resolve_model(model))
    loaded = GenerationModel(checkpoint, name or default_name(model), revision, limits)
    loaded.options({"max_new_tokens": 1})  # lengths may be each request's own
    return loaded
