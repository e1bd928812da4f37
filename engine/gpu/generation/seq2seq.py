"""An encoder-decoder model on a GPU: its weights, its pages of keys and values, and the passes over them."""

import math
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from penstock.engine.generation.device import DecoderRows
from penstock.engine.generation.limits import GeneratorLimits
from penstock.engine.generation.pages import Int64Array
from penstock.engine.generation_options import GenerationOptions
from penstock.engine.gpu.faults import DeviceFaults
from penstock.engine.gpu.generation.cached_attention import CacheLines
from penstock.engine.gpu.generation.device_search import GpuSearch, most_rows
from penstock.engine.gpu.generation.seq2seq_ops import DeviceTargetOps, TargetRows, prepare_seq2seq
from penstock.engine.gpu.generation.source_encoder import SourceEncoder
from penstock.engine.gpu.support import require_seq2seq_supported
from penstock.engine.gpu.uploads import upload
from penstock.engine.model.seq2seq import Seq2SeqWeights
from penstock.engine.model.seq2seq_forward import decode
from penstock.engine.types import Int32Array


class GpuSeq2Seq:
    """Implements `Seq2SeqDevice` in any type of torch. Without CUDA or in float32, torch computes what kernels would.

    Results of a row may differ in rounding with the number of rows. Works on the calling thread's current stream.
    Raises DeviceFailed from the device's first failure on, and OutOfMemoryError for any lack of memory.
    """

    def __init__(
        self,
        weights: Seq2SeqWeights,
        limits: GeneratorLimits,
        *,
        device: torch.device | str = "cuda",
        dtype: torch.dtype = torch.float16,
    ) -> None:
        """`limits` are those of the generator, with a page size that is a power of two."""
        if limits.page_size & (limits.page_size - 1):
            raise ValueError(f"on a GPU page_size must be a power of two, not {limits.page_size}.")
        if dtype is not torch.float32:
            require_seq2seq_supported(weights)
        self.device = torch.device(device)
        self.faults = DeviceFaults(self._synchronize)
        self._limits = limits
        self._model = prepare_seq2seq(weights, dtype, self.device)
        decoder = self._model.decoder
        scratch = (limits.num_pages + 1) * limits.page_size  # of a page that no table names
        num_slots = scratch + limits.page_size
        layers, width = len(decoder.layers), 2 * decoder.width
        self._key_values = torch.zeros(layers, num_slots, width, dtype=dtype, device=self.device)
        self.sources = SourceEncoder(self._model, limits.max_source_tokens, self._key_values, scratch)
        columns = len(self._model.head.weight)
        self._logits = torch.empty(most_rows(limits.max_rows), columns, dtype=dtype, device=self.device)
        self._vocabulary = weights.target_vocab_size
        self.search = GpuSearch(self._predict, limits, self._vocabulary, self._logits, self.faults)

    @torch.inference_mode()
    def encode(self, sources: Sequence[Int32Array], slots: Int64Array) -> None:
        """See `Seq2SeqDevice.encode`. Does not wait for the device."""
        with self.faults.sorted():
            self.sources.encode(sources, slots)

    @torch.inference_mode()
    def step(self, rows: DecoderRows) -> Tensor:
        """See `Seq2SeqDevice.step`."""
        with self.faults.sorted():
            return self._step(rows)

    @torch.inference_mode()
    def copy_pages(self, sources: Int64Array, destinations: Int64Array) -> None:
        """See `Seq2SeqDevice.copy_pages`."""
        if len(sources):
            with self.faults.sorted():
                of, to = upload(self.device, sources, destinations)
                pages = self._pages
                pages.index_copy_(1, to.long(), pages.index_select(1, of))

    @torch.inference_mode()
    def clear_pages(self, pages: Int64Array) -> None:
        """See `Seq2SeqDevice.clear_pages`."""
        if len(pages):
            with self.faults.sorted():
                (places,) = upload(self.device, pages)
                self._pages.index_fill_(1, places.long(), 0)

    def idle(self) -> bool:
        """See `Seq2SeqDevice.idle`: captures a graph that two batches have missed."""
        return self.search.capture_next() or self.sources.capture_next()

    @torch.inference_mode()
    def prepare(
        self, options: GenerationOptions, quanta: Sequence[int], max_requests: int, budget_s: float = math.inf
    ) -> None:
        """Capture the graphs of the encoder, and those of requests of a kind: see `GpuSearch.prepare`."""
        began = time.perf_counter()
        self.sources.prepare(self._limits.max_encode_tokens)
        self.search.prepare(options, quanta, max_requests, budget_s - (time.perf_counter() - began))

    def _step(self, rows: DecoderRows) -> Tensor:
        num_sources = len(rows.source_lengths)
        tokens, lengths, pages, lines, source_lengths, source_pages = upload(
            self.device,
            rows.tokens,
            rows.lengths,
            rows.pages,
            np.repeat(np.arange(num_sources), rows.rows_per_source),
            rows.source_lengths,
            rows.source_pages,
        )
        size = self._limits.page_size
        past = CacheLines(pages, lengths, None, size)
        sources = CacheLines(source_pages, source_lengths, lines, size)
        logits = self._predict(TargetRows(tokens, lengths - 1, past, sources))
        return logits[:, : self._vocabulary].to("cpu", torch.float32, copy=True)

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @property
    def _pages(self) -> Tensor:
        """[layers, pages, page_size, 2W]."""
        layers, slots, width = self._key_values.shape
        size = self._limits.page_size
        return self._key_values.view(layers, slots // size, size, width)

    def _predict(self, rows: TargetRows) -> Tensor:
        """Logits [R, ...], of which the first columns are the vocabulary; overwritten by the next call."""
        return decode(
            self._model, DeviceTargetOps(rows, self._model.decoder.heads.queries, self._key_values, self._logits)
        )
