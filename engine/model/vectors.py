"""Heads that make other results of hidden states than one vector: sparse weights, token vectors, or all of one pass.

A head works in two steps. `compute` runs on the device of the hidden states and keeps what is of fixed size for each
token or text; `rows` runs on the host, where token ids say which tokens count. Layouts of rows: `engine.vector_rows`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.model.dense import by_vectors, linear_by_row
from penstock.engine.model.results import apply_layers
from penstock.engine.model.weights import Dense, Norm
from penstock.engine.types import Float32Array, Int32Array, PackedBatch
from penstock.engine.vector_rows import join_sparse, join_vectors

# Rows of the decoder that are multiplied at a time. The logits of a batch then take no more memory than the MLP of a
# layer, whatever the vocabulary's size.
_BLOCK = 4096
_ID_BITS = 24  # of a token id, in a key that a text's number is before


class VectorHead(Protocol):
    """A head whose rows are of more than one vector."""

    def compute(self, hidden: Tensor, lengths: Tensor, embeddings: Callable[[], Tensor]) -> tuple[Tensor, ...]:
        """Float32 tensors on the device of `hidden`, which `rows` is given on the host.

        hidden: [T, H] of any floating type, sequences end to end; lengths: [N] of these, on the same device.
        embeddings: makes the checkpoint's own vectors [N, D], where the head needs them.
        """
        ...

    def rows(
        self, computed: Sequence[Float32Array], token_ids: Int32Array, lengths: Int32Array
    ) -> Sequence[Float32Array]:
        """A row for each sequence, of what `compute` gave. token_ids: [T], in the order of `hidden`; lengths: [N]."""
        ...


@dataclass(frozen=True, slots=True)
class Splade:
    """The weight of each token of the vocabulary in a text, by a masked language model's logits.

    (Formal et al. 2021: SPLADE, and v2, which takes the maximum.)
    """

    layers: tuple[Dense | Norm, ...]  # before the decoder, float32
    decoder: Dense  # [V, H], in the precision of the encoder's products
    pooling: str  # over a text's tokens: "max" or "sum"
    num_logs: int  # of log(1 + x), after ReLU: 1, or 2 in OpenSearch's models

    def compute(self, hidden: Tensor, lengths: Tensor, embeddings: Callable[[], Tensor]) -> tuple[Tensor, ...]:
        """The number of weights of each text [N], and all ids and weights, text after text."""
        states = apply_layers(hidden.float(), self.layers).to(self.decoder.weight.dtype)
        found = []
        for first in range(0, len(self.decoder.weight), _BLOCK):
            block = slice(first, first + _BLOCK)
            bias = None if self.decoder.bias is None else self.decoder.bias[block]
            weights = self._weights(linear_by_row(states, self.decoder.weight[block], bias).float(), lengths)
            # Waits for a GPU: the weights of a batch, most of them 0, would fill its memory and the host's. NaN is not
            # 0, and is found in the row.
            texts, columns = weights.nonzero(as_tuple=True)
            found.append((texts, columns + first, weights[texts, columns]))
        texts, ids, values = (torch.cat(parts) for parts in zip(*found, strict=True))
        in_order = texts.argsort(stable=True)  # the ids of a text stay ascending
        return torch.bincount(texts, minlength=len(lengths)).float(), ids[in_order].float(), values[in_order]

    def _weights(self, logits: Tensor, lengths: Tensor) -> Tensor:
        """[T, W] to weights [N, W], at least 0."""
        if self.pooling == "max":  # of logits, as the functions after it do not change their order
            return self._activated(_by_text(logits, lengths, "max"))
        return _by_text(self._activated(logits), lengths, "sum")

    def _activated(self, x: Tensor) -> Tensor:
        x = x.relu_()
        for _ in range(self.num_logs):
            x = by_vectors(torch.log1p_, x)
        return x

    def rows(
        self, computed: Sequence[Float32Array], token_ids: Int32Array, lengths: Int32Array
    ) -> Sequence[Float32Array]:
        counts, ids, weights = computed
        return _sparse_rows(counts, ids, weights)


@dataclass(frozen=True, slots=True)
class Lexical:
    """The weight of each token by its hidden state, the largest of equal tokens (Chen et al. 2024: M3-Embedding)."""

    weigh: Dense  # [1, H], float32
    left_out: Int32Array  # ids that have no weight

    def compute(self, hidden: Tensor, lengths: Tensor, embeddings: Callable[[], Tensor]) -> tuple[Tensor, ...]:
        """The weight of each token [T], of which those above 0 count."""
        return (apply_layers(hidden.float(), (self.weigh,))[:, 0],)

    def rows(
        self, computed: Sequence[Float32Array], token_ids: Int32Array, lengths: Int32Array
    ) -> Sequence[Float32Array]:
        (weights,) = computed
        counts = ~np.isin(token_ids, self.left_out) & ~(weights <= 0)  # NaN counts, and is found in the row
        texts = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
        keys, weights = ((texts << _ID_BITS) | token_ids)[counts], weights[counts]
        in_order = keys.argsort(kind="stable")
        keys, weights = keys[in_order], weights[in_order]
        first = np.flatnonzero(np.diff(keys, prepend=-1))  # of equal tokens of a text
        most = np.maximum.reduceat(weights, first) if len(first) else weights
        num_ids = np.bincount(keys[first] >> _ID_BITS, minlength=len(lengths))
        return _sparse_rows(num_ids, keys[first] & ((1 << _ID_BITS) - 1), most)


@dataclass(frozen=True, slots=True)
class KeptTokens:
    """Which tokens of a text have a vector. Where none of them would, the first one has."""

    without_first: bool = False
    skipped: Int32Array = field(default_factory=lambda: np.empty(0, np.int32))  # ids, in texts that are no queries
    query: "Marker | None" = None  # of queries

    def of(self, token_ids: Int32Array, lengths: Int32Array) -> npt.NDArray[np.bool_]:
        """[T]: whether each token is kept, of sequences end to end."""
        starts = np.cumsum(lengths) - lengths
        kept = np.ones(len(token_ids), np.bool_)
        if self.without_first:
            kept[starts] = False
        if len(self.skipped):
            kept = ~np.isin(token_ids, self.skipped)
            if self.query is not None:
                kept |= np.repeat(queries_of(self.query, token_ids, starts, lengths), lengths)
        kept[starts[np.add.reduceat(kept, starts, dtype=np.int32) == 0]] = True
        return kept


@dataclass(frozen=True, slots=True)
class Marker:
    """The token that a query begins with, or has after one special token."""

    query: int
    document: int | None  # that a document begins with, whose own text may begin with that of queries; None: not known


def queries_of(marker: Marker, token_ids: Int32Array, starts: Int32Array, lengths: Int32Array) -> npt.NDArray[np.bool_]:
    """[N]: whether each sequence is a query."""
    first, second = token_ids[starts], token_ids[starts + np.minimum(1, lengths - 1)]
    follows = second == marker.query
    if marker.document is not None:
        follows &= first != marker.document
    is_query: npt.NDArray[np.bool_] = (first == marker.query) | follows
    return is_query


@dataclass(frozen=True, slots=True)
class Unattended:
    """Expansion of queries by tokens that attend to the others, and are attended to by none (ColBERT's own)."""

    query: Marker
    token: int  # that fills it up
    length: int  # to which it is filled up

    def attended(self, batch: PackedBatch) -> Int32Array | None:
        """[N]: the tokens at the start of each sequence that are attended to; None: all of all sequences."""
        ids, starts, lengths = batch.token_ids, batch.cu_seqlens[:-1], np.diff(batch.cu_seqlens)
        is_filled = (lengths == self.length) & (ids[batch.cu_seqlens[1:] - 1] == self.token)
        if is_filled.any():
            is_filled &= queries_of(self.query, ids, starts, lengths)
        if not is_filled.any():
            return None
        attended = lengths.astype(np.int32)
        for index in np.flatnonzero(is_filled):
            others = np.flatnonzero(ids[starts[index] : starts[index] + lengths[index]] != self.token)
            attended[index] = others[-1] + 1  # the marker is one of them
        return attended


@dataclass(frozen=True, slots=True)
class TokenVectors:
    """A vector of each token, for late interaction (Khattab and Zaharia 2020: ColBERT)."""

    layers: tuple[Dense, ...]
    normalize: bool
    kept: KeptTokens
    unattended: Unattended | None = None

    @property
    def dim(self) -> int:
        """Length of a token's vector."""
        return len(self.layers[-1].weight)

    def compute(self, hidden: Tensor, lengths: Tensor, embeddings: Callable[[], Tensor]) -> tuple[Tensor, ...]:
        """The vectors of all tokens [T, dim]."""
        vectors = apply_layers(hidden.float(), self.layers)
        return (F.normalize(vectors, dim=1) if self.normalize else vectors,)

    def rows(
        self, computed: Sequence[Float32Array], token_ids: Int32Array, lengths: Int32Array
    ) -> Sequence[Float32Array]:
        (vectors,) = computed
        kept = self.kept.of(token_ids, lengths)
        counts = np.add.reduceat(kept, np.cumsum(lengths) - lengths, dtype=np.int32)
        return np.split(vectors[kept], np.cumsum(counts)[:-1])


@dataclass(frozen=True, slots=True)
class AllVectors:
    """The checkpoint's own vector, the token vectors and the sparse weights of one pass."""

    tokens: TokenVectors
    sparse: Lexical

    def compute(self, hidden: Tensor, lengths: Tensor, embeddings: Callable[[], Tensor]) -> tuple[Tensor, ...]:
        """The vectors [N, D], and what the two heads compute."""
        others = (head.compute(hidden, lengths, embeddings) for head in (self.tokens, self.sparse))
        return embeddings(), *chain.from_iterable(others)

    def rows(
        self, computed: Sequence[Float32Array], token_ids: Int32Array, lengths: Int32Array
    ) -> Sequence[Float32Array]:
        vectors, tokens, weights = computed
        of_tokens = self.tokens.rows((tokens,), token_ids, lengths)
        return list(map(join_vectors, vectors, of_tokens, self.sparse.rows((weights,), token_ids, lengths)))


def _sparse_rows(counts: npt.NDArray[Any], ids: npt.NDArray[Any], weights: Float32Array) -> list[Float32Array]:
    """Rows of `embed_sparse`. counts: [N] of the ids and weights of each text, which lie end to end."""
    bounds = np.cumsum(counts[:-1], dtype=np.int64)
    parts = zip(np.split(ids, bounds), np.split(weights, bounds), strict=True)
    return [join_sparse(*part) for part in parts]


def _by_text(values: Tensor, lengths: Tensor, how: str) -> Tensor:
    """[T, W] to [N, W]: "max" or "sum" over the tokens of each sequence."""
    if values.is_cuda:
        result: Tensor = torch.segment_reduce(values, how, lengths=lengths, axis=0, unsafe=True)
        return result
    parts, start = [], 0
    for length, equal in groupby(lengths.tolist()):
        count = sum(1 for _ in equal)
        stop = start + count * length
        view = values[start:stop].view(count, length, -1)
        parts.append(view.amax(dim=1) if how == "max" else view.sum(dim=1))
        start = stop
    return torch.cat(parts)


def unattended_in(heads: Mapping[str, Any]) -> Unattended | None:
    """How queries are expanded by tokens that are not attended to, where one of the heads has such queries."""
    return next((head.unattended for head in heads.values() if isinstance(head, TokenVectors)), None)
