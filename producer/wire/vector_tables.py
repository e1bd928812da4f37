"""Sparse vectors and vectors of tokens, as callers get them and as a reply holds those of n sequences."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]


class SparseVector(NamedTuple):
    """Weights of token ids. All other ids of the vocabulary have weight 0. It may be empty."""

    ids: npt.NDArray[np.uint32]  # [K], ascending
    weights: Floats  # [K], above 0


class TextVectors(NamedTuple):
    """All three that a model computes of one sequence in one pass."""

    vector: Floats  # [dim]
    tokens: Floats  # [n, token_dim]
    sparse: SparseVector


@dataclass(frozen=True, slots=True, eq=False)
class SparseTable:
    """Sparse vectors of n sequences, end to end. K is the sum of `lens`."""

    lens: tuple[int, ...]  # ids of each sequence; may be 0
    ids: npt.NDArray[np.uint32]  # [K], ascending in each sequence
    weights: Floats  # [K]

    def rows(self) -> list[SparseVector]:
        """Views of the vector of each sequence."""
        return [SparseVector(self.ids[part], self.weights[part]) for part in _parts(self.lens)]


@dataclass(frozen=True, slots=True, eq=False)
class TokenVectorTable:
    """Vectors of the tokens of n sequences, end to end. T is the sum of `lens`."""

    lens: tuple[int, ...]  # vectors of each sequence, at least 1
    matrix: Floats  # [T, token_dim]

    def rows(self) -> list[Floats]:
        """Views of the matrix of each sequence."""
        return [self.matrix[part] for part in _parts(self.lens)]


def _parts(lens: Sequence[int]) -> Iterator[slice]:
    ends = itertools.accumulate(lens)
    return (slice(end - length, end) for length, end in zip(lens, ends, strict=True))
