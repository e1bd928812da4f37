"""An encoder-decoder model for a worker: its facts, the options that it allows, and its generator."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from penstock.engine.device import choose_device, device_name
from penstock.engine.errors import UnsupportedDevice
from penstock.engine.generation.generator import Generator
from penstock.engine.generation.limits import GeneratorLimits
from penstock.engine.generation.loading import Seq2SeqCheckpoint, load_seq2seq
from penstock.engine.generation_options import GenerationOptions, clip_lengths
from penstock.engine.host_memory import free_host_bytes
from penstock.engine.model.checkpoint import default_name, resolve_model, revision_of
from penstock.engine.model.modules import tokenizer_max_tokens
from penstock.engine.types import ModelInfo

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Pages, by default: of the memory that is free before the weights are there. Members share it, and a GPU's graphs need
# some.
_SHARE_OF_FREE = 8
_MOST_PAGE_BYTES = {"cpu": 2 << 30, "cuda": 8 << 30}
_PREPARE_S = 10.0  # for CUDA graphs, at load


class GenerationModel:
    """Made by `load_generation_model`."""

    def __init__(
        self,
        checkpoint: Seq2SeqCheckpoint,
        name: str,
        revision: str,
        limits: GeneratorLimits,
        dtype: str,
        device: str,
    ) -> None:
        """device: "cpu", or the name of the current GPU."""
        weights = checkpoint.weights
        self._checkpoint = checkpoint
        self._own_options = clip_lengths(checkpoint.generation_config, limits.longest_result(weights))
        self.limits = limits
        self.info = ModelInfo(
            name=name,
            revision=revision,
            dtype=dtype,
            device=device,
            vocab_size=weights.source_vocab_size,
            max_tokens=min(filter(None, (limits.max_source_tokens, weights.max_source_tokens))),
            cut_tokens=tokenizer_max_tokens(checkpoint.directory),
            tasks=frozenset({"generate"}),
            dim=weights.encoder.embeddings.words.shape[1],
            labels=(),
        )

    def options(self, changes: Mapping[str, Any]) -> GenerationOptions:
        """The model's own options with some changed, by their names in generation_config.json.

        The model's own lengths end where the limits do: a `max_length` of 2048 is that of no request.
        Raises InvalidOption, which names the option, where the model or the limits do not allow it.
        """
        options = GenerationOptions.of({**self._own_options, **changes})
        self.limits.require_options(options, self._checkpoint.weights)
        return options

    def generator(self, threads: int, quanta: Sequence[int]) -> Generator:
        """A generator with its pages, ready to run. Blocks for seconds on a GPU. Raises UnsupportedDevice.

        threads: of a CPU's matrix products. quanta: steps of a call of `decode`, for which a GPU's graphs are captured.
        """
        weights, limits = self._checkpoint.weights, self.limits
        if self.info.device == "cpu":
            return Generator(weights, limits, threads)
        from penstock.engine.gpu.generation.seq2seq import GpuSeq2Seq

        device, own = GpuSeq2Seq(weights, limits, dtype=_DTYPES[self.info.dtype]), self.options({"max_new_tokens": 1})
        if self.info.dtype != "float32" and device.search.supports(own):  # float32 is for comparisons
            device.prepare(own, quanta, limits.max_rows, budget_s=_PREPARE_S)
        return Generator(weights, limits, device=device)


def load_generation_model(
    model: str,
    *,
    name: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    max_rows: int | None = None,
    max_encode_tokens: int | None = None,
    page_bytes: int | None = None,
) -> GenerationModel:
    """Load a model directory or Hugging Face id whose checkpoint `generates`. Blocks for seconds.

    name: the model's name in requests; `default_name` when None. max_rows, max_encode_tokens: see `GeneratorLimits`.
    page_bytes: of keys and values; None: an eighth of the free memory, at most 2 GiB on a CPU and 8 GiB on a GPU.
    dtype: on a GPU "float16", "bfloat16", "float32", or "auto": float16, and bfloat16 where float16 would overflow; on
        a CPU "float32" or "auto".
    device: "cpu", "cuda" or "auto": a GPU if there is one and CuPy is installed.
    Raises CheckpointError, UnsupportedCheckpoint, UnsupportedDevice; and InvalidOption where one of the model's own
    options is not implemented, since every request would be rejected.
    """
    place = choose_device(device)
    given = {"max_rows": max_rows, "max_encode_tokens": max_encode_tokens}
    limits = GeneratorLimits(**{field: value for field, value in given.items() if value is not None})
    checkpoint, revision = load_seq2seq(model), revision_of(resolve_model(model))
    precision, own_name = _precision(dtype, place, checkpoint), name or default_name(model)
    checkpoint.tensors.require_range(_DTYPES[precision])
    limits = replace(limits, num_pages=_num_pages(limits, checkpoint, _DTYPES[precision], place, page_bytes))
    if place == "cuda":
        place = device_name()
    loaded = GenerationModel(checkpoint, own_name, revision, limits, precision, place)
    loaded.options({"max_new_tokens": 1})  # lengths may be each request's own
    return loaded


def _precision(dtype: str, device: str, checkpoint: Seq2SeqCheckpoint) -> str:
    if dtype == "auto":
        return "float32" if device == "cpu" else "bfloat16" if checkpoint.overflows_float16 else "float16"
    known = ["float32"] if device == "cpu" else list(_DTYPES)
    if dtype not in known:
        raise UnsupportedDevice(
            f"dtype {dtype!r} is not available for a model that generates on {device!r}; "
            f"use auto or {' or '.join(known)}."
        )
    return dtype


def _num_pages(
    limits: GeneratorLimits, checkpoint: Seq2SeqCheckpoint, dtype: torch.dtype, device: str, page_bytes: int | None
) -> int:
    """Pages of keys and values in the given memory, or in a part of what is free. Raises UnsupportedDevice."""
    free_bytes = torch.cuda.mem_get_info()[0] if device == "cuda" else _free_host_bytes()
    if page_bytes is not None and page_bytes > free_bytes:
        raise UnsupportedDevice(
            f"{page_bytes >> 20:,} MiB of keys and values do not fit into the {free_bytes >> 20:,} MiB of free memory. "
            "Set less, or leave the setting out."
        )
    most_bytes = page_bytes or min(free_bytes // _SHARE_OF_FREE, _MOST_PAGE_BYTES[device])
    return limits.pages_in(most_bytes, checkpoint.weights, dtype.itemsize)


def _free_host_bytes() -> int:
    """Memory that is free; all that the machine has where that is unknown."""
    free_bytes = free_host_bytes()
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if free_bytes is None else free_bytes
