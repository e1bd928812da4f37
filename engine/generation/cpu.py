"""The encoder and the decoder's steps on a CPU, in float32."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from penstock.engine.cpu.linear import Linear, make_linear
from penstock.engine.cpu.ops import CpuOps, RowOps
from penstock.engine.generation.device import DecoderRows, DeviceSearch
from penstock.engine.generation.paged_attention import KeyGroup, attend_pages, group_keys
from penstock.engine.generation.pages import Int64Array
from penstock.engine.model.embeddings import look_up, source_positions
from penstock.engine.model.layout import Layout, rounded, sort_by_length
from penstock.engine.model.seq2seq import Seq2Seq, Seq2SeqWeights, TokenEmbeddings
from penstock.engine.model.seq2seq_forward import decode, encode
from penstock.engine.model.weights import Attention, Heads, cached_bias
from penstock.engine.types import Int32Array


class CpuSeq2Seq:
    """Implements `Seq2SeqDevice`. Results of a row do not depend on the other rows."""

    search: DeviceSearch | None = None  # tokens are chosen by `selection.choose`

    def __init__(self, weights: Seq2SeqWeights, num_pages: int, page_size: int, threads: int) -> None:
        self._model: Seq2Seq[Linear] = weights.prepared(lambda dense: make_linear(dense, torch.float32), lambda t: t)
        decoder = weights.decoder
        # numpy's zeros take no memory before they are written; torch writes its own at once.
        pages = np.zeros((len(decoder.layers), num_pages, page_size, 2 * decoder.width), np.float32)
        self._key_values = torch.from_numpy(pages)
        self._threads = threads

    @torch.inference_mode()
    def encode(self, sources: Sequence[Int32Array], slots: Int64Array) -> None:
        """Run the encoder, and write what the decoder reads of the sources' tokens, end to end, to their slots."""
        self._use_threads()
        cu_seqlens = np.cumsum([0, *map(len, sources)]).astype(np.int32)
        layout = sort_by_length(cu_seqlens)
        stack, tokens = self._model.encoder, np.concatenate(sources)
        positions = source_positions(tokens, np.diff(cu_seqlens), stack.embeddings.pad_token)
        own = torch.from_numpy(slots[layout.tokens[: layout.num_tokens]])
        rows = torch.from_numpy(tokens[layout.tokens]), torch.from_numpy(positions[layout.tokens])
        encode(self._model, _SourceOps(layout, *rows, stack.heads, self._key_values, own))

    @torch.inference_mode()
    def step(self, rows: DecoderRows) -> Tensor:
        """Logits [R, V] of the token after each row's."""
        self._use_threads()
        num_rows = len(rows.tokens)
        logits = decode(self._model, _TargetOps(rows, self._model.decoder.heads.queries, self._key_values))
        return logits[:num_rows]

    @torch.inference_mode()
    def copy_pages(self, sources: Int64Array, destinations: Int64Array) -> None:
        """Copy pages of all layers; no page is in both."""
        if len(sources):
            self._key_values[:, torch.from_numpy(destinations)] = self._key_values[:, torch.from_numpy(sources)]

    def clear_pages(self, pages: Int64Array) -> None:
        """Make pages zero. Attention multiplies what lies behind a row's last key by zero, which no NaN survives."""
        self._key_values[:, torch.from_numpy(pages)] = 0

    def idle(self) -> bool:
        """Nothing makes later steps faster."""
        return False

    def _use_threads(self) -> None:
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)


class _SourceOps(CpuOps):
    """Implements `SourceOps` for sources in the order of `layout`."""

    def __init__(
        self, layout: Layout, tokens: Tensor, positions: Tensor, heads: Heads, key_values: Tensor, slots: Tensor
    ) -> None:
        """key_values [layers, num_pages, page_size, 2W]; the others but `heads`: of each token of `layout`."""
        super().__init__(layout, tokens, None, heads, torch.float32, positions)
        self._key_values = key_values.flatten(1, 2)
        self._slots = slots

    def look_up(self, embeddings: TokenEmbeddings) -> Tensor:
        return look_up(embeddings, self._token_ids, self._positions)

    def remember(self, layer: int, key_value: Tensor) -> None:
        self._key_values[layer, self._slots] = key_value[: len(self._slots)]


class _TargetOps(RowOps):
    """Implements `TargetOps` for one step. Spare rows, up to a rounded number, are of token 0 and keep nothing."""

    def __init__(self, rows: DecoderRows, num_heads: int, key_values: Tensor) -> None:
        """key_values [layers, num_pages, page_size, 2W]."""
        spare = rounded(len(rows.tokens)) - len(rows.tokens)
        self._tokens = torch.from_numpy(np.pad(rows.tokens, (0, spare)))
        self._positions = torch.from_numpy(np.pad(rows.lengths - 1, (0, spare)))
        self._slots = torch.from_numpy(rows.slots)
        self._num_heads = num_heads
        self._key_values = key_values
        page_size = key_values.shape[2]
        every = np.arange(len(rows.tokens))
        self._past = group_keys(rows.pages, rows.lengths, every[:, None], page_size)
        self._sources = _source_groups(rows, page_size)

    def look_up(self, embeddings: TokenEmbeddings) -> Tensor:
        return look_up(embeddings, self._tokens, self._positions)

    def attend_cached(self, qkv: Tensor, layer: int, attention: Attention) -> Tensor:
        width = qkv.shape[1] // 3
        self._key_values[layer].flatten(0, 1)[self._slots] = qkv[: len(self._slots), width:]
        return attend_pages(
            qkv[:, :width], self._key_values[layer], self._past, self._num_heads, cached_bias(attention)
        )

    def attend_cross(self, query: Tensor, layer: int) -> Tensor:
        return attend_pages(query, self._key_values[layer], self._sources, self._num_heads, None)

    def predict(self, x: Tensor, head: Linear) -> Tensor:
        return head(x)


def _source_groups(rows: DecoderRows, page_size: int) -> list[KeyGroup]:
    """Groups of sources with equally many rows each."""
    first = np.cumsum(rows.rows_per_source) - rows.rows_per_source
    groups = []
    for count in np.unique(rows.rows_per_source).tolist():
        own = np.flatnonzero(rows.rows_per_source == count)
        queries = first[own, None] + np.arange(count)
        groups += group_keys(rows.source_pages[own], rows.source_lengths[own], queries, page_size)
    return groups
