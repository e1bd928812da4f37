"""Preparation of a layer for products in eight-bit integers, the same on any device.

Each input is divided by a factor, and its weights multiplied by it, so that inputs and their weights are of similar
size (SmoothQuant, Xiao et al. 2023): of all-MiniLM-L6-v2's error that removes a quarter.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from penstock.engine.model.weights import Dense

_MOST_LOST = 0.02  # of the weights of an output, relative; of normally distributed ones it is 0.01
_LEAST_SIZE = 1e-4  # of inputs and of weights, relative to the largest, below which they are not made alike
_LEAST_INPUT = 0.2  # of an input's size, relative to the mean: few tokens measure it, and ReLU lets few reach an input


class NoInt8(ValueError):
    """A layer whose weights cannot be eight-bit integers. Its message is the reason."""


@dataclass(frozen=True, slots=True)
class Int8Plan:
    """Measurements of an encoder's matrices, by the id of each."""

    sizes: Mapping[int, Tensor]  # of its inputs [in]
    reasons: Mapping[int, str]  # of those that are to stay in more bits
    unsuited: Mapping[int, Dense]  # the same


def block_of(depth: int, blocks: tuple[int, ...]) -> int:
    """Inputs that are rotated together: the first of `blocks`, the smallest last, that divides them. Raises NoInt8."""
    for block in blocks:
        if depth % block == 0:
            return block
    raise NoInt8(f"{depth} inputs are no multiple of {blocks[-1]}")


def balance(weight: Tensor, sizes: Tensor) -> Tensor:
    """The factor of each input's weights [in], half of them negative.

    sizes: [in], of the inputs, such as the root of their mean squares.
    """
    sizes = _positive(sizes.clamp(min=sizes.mean() * _LEAST_INPUT))
    return (sizes / _positive(weight.square().mean(dim=0).sqrt())).sqrt() * signs(len(sizes))


def require_digits(weight: Tensor, scales: Tensor, block: int) -> None:
    """Raise NoInt8 where rounding weights [out, in], rotated without a factor, to steps of `scales` loses too much."""
    # Rounding to steps of a scale adds scale / sqrt(12) to each; the rotated weights are sqrt(block) times as large.
    size = (weight.square().mean(dim=1) * block).sqrt()
    lost = torch.where(size > 0, scales / size / math.sqrt(12), 0.0).max().item()
    if not lost <= _MOST_LOST:
        raise NoInt8(f"an output would lose {lost:.3f} of its weights, more than {_MOST_LOST}")


def signs(depth: int) -> Tensor:
    """1 and -1 by chance, the same for each load. A Hadamard matrix alone gathers what inputs have in common."""
    return torch.from_numpy(np.random.default_rng(0).choice(np.array([-1.0, 1.0], np.float32), depth))


def _positive(sizes: Tensor) -> Tensor:
    """The sizes, none of which is zero; ones where all are."""
    largest = sizes.max()
    return sizes.clamp(min=largest * _LEAST_SIZE) if largest > 0 else torch.ones_like(sizes)
