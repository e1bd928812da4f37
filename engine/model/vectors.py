"""Heads that make other results of hidden states than one vector: sparse weights, token vectors, or all of one pass.

A head works in two steps. `compute` runs on the device of the hidden states and keeps what is of fixed size for each
token or text; `rows` runs on the host, where token ids say which tokens count. Layouts of rows: `engine.vector_rows`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from penstock.engine.model.dense import by_vectors, linear_by_row
from penstock.engine.model.results import apply_layers
from penstock.engine.model.weights import Dense, Norm
from penstock.engine.types import Float32Array, Int32Array

# Rows of the decoder that are multiplied at a time. The logits of a batch then take no more memory than the MLP of a
# layer, whatever the vocabulary's size.
_BLOCK = 4096


class VectorHead(Protocol):
    """A head whose rows are of more than one vector."""

    def compute(self, hidden: Tensor, lengths: Tensor, embeddings: Callable[[], Tensor]) -> tuple[Tensor, ...]:
        """Float32 tensors on the device of `hidden`, which `rows` is given on the host.

        hidden: [T, H] of any floating type, sequences end to end; lengths: [N] of these, on the same device.
        embeddings: makes the checkpoint's own vectors [N, D], where the head needs them.
        """
        ...

    def rows(self, computed: Sequence[Float32Array], token_ids: Sequence[Int32Array]) -> list[Float32Array]:
        """A row for each sequence, in the order of `lengths`. token_ids: of each sequence, in this order."""
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

    def rows(self, computed: Sequence[Float32Array], token_ids: Sequence[Int32Array]) -> list[Float32Array]:
        counts, ids, weights = computed
        bounds = np.cumsum(counts[:-1], dtype=np.int64)
        parts = zip(np.split(ids, bounds), np.split(weights, bounds), strict=True)
        return [np.concatenate(part) for part in parts]


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
