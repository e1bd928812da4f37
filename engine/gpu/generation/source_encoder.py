"""The encoder of an encoder-decoder model on a device: sources end to end, in shapes that CUDA graphs can hold."""

import contextlib
from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.engine.generation.pages import Int64Array
from penstock.engine.gpu.generation.seq2seq_ops import DeviceSourceOps, SourceRows, uses_flash
from penstock.engine.gpu.graphs import Graphs
from penstock.engine.gpu.ops import GpuDense
from penstock.engine.gpu.uploads import sections_of
from penstock.engine.model.embeddings import source_positions
from penstock.engine.model.seq2seq import Seq2Seq
from penstock.engine.model.seq2seq_forward import encode
from penstock.engine.types import Int32Array

# Tokens of a batch are rounded up to the next of these. Larger batches are launched kernel by kernel, in exact shapes.
_TOKENS = (64, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12_288, 16_384)
_MIN_SOURCES, _MIN_LONGEST, _MIN_FLASH_LONGEST = 8, 32, 128
_TOKENS_A_SOURCE = 16, 4, 1  # of batches of usual, short and shortest sources


class SourceShape(NamedTuple):
    """Sizes that a captured graph fixes. Spare tokens are of no source, and spare sources have no token."""

    tokens: int
    sources: int
    longest: int  # of a source, at most

    @property
    def sections(self) -> tuple[slice, ...]:
        """Of a description: the arrays of `SourceRows`, in their order."""
        return sections_of([*[self.tokens] * 4, self.sources + 1, self.sources])


def source_shape(lengths: Int64Array, most_tokens: int, *, is_padded: bool) -> SourceShape:
    """The shape for sources of these lengths. most_tokens: of a source, by the generator's limits.

    is_padded: whether attention pads sources. Otherwise spare sources cost little, so few shapes have many of them.
    """
    count, tokens, longest = len(lengths), int(lengths.sum()), int(lengths.max())
    if tokens > _TOKENS[-1]:
        return SourceShape(tokens, count, longest)
    rounded = _TOKENS[bisect_left(_TOKENS, tokens)]
    sizes = (_power_of_two(count),) if is_padded else tuple(rounded // each for each in _TOKENS_A_SOURCE)
    sources = next(size for size in (_MIN_SOURCES, *sizes) if size >= count)
    least = _MIN_LONGEST if is_padded else _MIN_FLASH_LONGEST
    return SourceShape(rounded, sources, min(max(least, _power_of_two(longest)), max(most_tokens, longest)))


class SourceEncoder:
    """Writes the keys and values of cross-attention to their slots, in the order of the current stream.

    Called by the generator's thread.
    """

    def __init__(self, model: Seq2Seq[GpuDense], most_tokens: int, key_values: Tensor, scratch: int) -> None:
        """key_values [layers, slots, 2W]. scratch: a slot that nothing reads. most_tokens: of a source."""
        self._model = model
        self._most_tokens = most_tokens
        self._key_values = key_values
        self._scratch = scratch
        device = self._device = key_values.device
        largest = SourceShape(_TOKENS[-1], _TOKENS[-1], 1).sections[-1].stop if device.type == "cuda" else 0
        self._description = torch.zeros(largest, dtype=torch.int32, device=device)  # of the graphs
        self._graphs: Graphs[SourceShape] | None = Graphs(device) if device.type == "cuda" else None
        head_dim, layers = model.encoder.heads.dim, model.encoder.layers
        of_layers = [uses_flash(key_values, layer.attention, head_dim) for layer in layers]
        self._is_padded = not all(of_layers)

    def encode(self, sources: Sequence[Int32Array], slots: Int64Array) -> None:
        """Queue a batch. Does not wait for the device."""
        lengths = np.array([len(source) for source in sources])
        shape = self._shape(lengths)
        if self._graphs is None or shape.tokens > _TOKENS[-1]:
            description = torch.empty(shape.sections[-1].stop, dtype=torch.int32, device=self._device)
            self._describe(description, shape, sources, lengths, slots)
            self._work(description, shape)
        else:
            self._describe(self._description, shape, sources, lengths, slots)
            self._graphs.capture_next(self._work_of)  # a device that is never idle needs its graphs the most
            self._graphs.run(shape, self._work_of(shape))

    def prepare(self, tokens: int) -> None:
        """Capture graphs of batches of up to so many tokens, of sources of usual lengths. Called at load."""
        if self._graphs is None:
            return
        each = min(self._most_tokens, 4 * _TOKENS_A_SOURCE[0])
        for total in reversed(_TOKENS[: bisect_left(_TOKENS, tokens) + 1]):  # the smaller ones find memory in the pool
            lengths = np.full(max(1, total // each), each if total >= each else total)
            shape = self._shape(lengths)
            sources = [np.zeros(length, np.int32) for length in lengths.tolist()]
            slots = np.full(int(lengths.sum()), self._scratch)
            self._describe(self._description, shape, sources, lengths, slots)
            self._work_of(shape)()  # loads the kernels: no module can be loaded during a capture
            self._graphs.capture(shape, self._work_of(shape))

    @torch.inference_mode()
    def capture_next(self) -> bool:
        """Capture a graph that two batches have missed, if any. Returns whether there was one."""
        if self._graphs is None or not self._graphs.is_due:
            return False
        with contextlib.suppress(RuntimeError):  # an error of the device appears again in the next call
            self._graphs.capture_next(self._work_of)
        return True

    def _describe(
        self,
        description: Tensor,
        shape: SourceShape,
        sources: Sequence[Int32Array],
        lengths: Int64Array,
        slots: Int64Array,
    ) -> None:
        """Copy a batch's description to the device."""
        ends, total = np.cumsum(lengths), len(slots)
        lines = np.repeat(np.arange(len(lengths)) * shape.longest - (ends - lengths), lengths)
        spare = shape.sources * shape.longest  # the place behind all
        size = shape.sections[-1].stop
        values = torch.empty(size, dtype=torch.int32, pin_memory=self._device.type == "cuda")
        parts = [values.numpy()[section] for section in shape.sections]
        joined: Int32Array = np.concatenate(sources)
        positions = source_positions(joined, lengths, self._model.encoder.embeddings.pad_token)
        arrays: Sequence[Int32Array | Int64Array]
        arrays = joined, positions, slots, lines + np.arange(total), np.append(0, ends), lengths
        for part, array, rest in zip(parts, arrays, (0, 0, self._scratch, spare, total, 0), strict=True):
            part[: len(array)], part[len(array) :] = array, rest
        description[:size].copy_(values, non_blocking=True)  # torch keeps pinned memory until it has ended

    def _shape(self, lengths: Int64Array) -> SourceShape:
        return source_shape(lengths, self._most_tokens, is_padded=self._is_padded)

    def _work_of(self, shape: SourceShape) -> partial[Tensor]:
        """As work of a graph, which reads the description at its fixed address."""
        return partial(self._work, self._description, shape)

    def _work(self, description: Tensor, shape: SourceShape) -> Tensor:
        tokens, positions, slots, places, ends, lengths = (description[one] for one in shape.sections)
        rows = SourceRows(tokens, positions, slots.long(), places.long(), ends, lengths, shape.longest)
        encode(self._model, DeviceSourceOps(rows, self._model.encoder.heads.queries, self._key_values))
        return self._key_values


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()
