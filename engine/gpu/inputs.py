"""A batch's description for its kernels: laid out on the host, then copied to the device in one copy."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from torch import Tensor

from penstock.engine.gpu.choice import AttentionKernel, plan_capacity, plan_items
from penstock.engine.gpu.uploads import sections_of
from penstock.engine.types import Int32Array, PackedBatch


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a batch on the device; launches depend on the batch only through it.

    `rows` may exceed the batch's tokens, and `sequences` the number of its sequences. Spare rows are sequences of token
    0, so that every row is defined. Beyond these, spare sequences are empty.
    """

    rows: int
    sequences: int
    max_seqlen: int  # at least the tokens of every sequence
    has_types: bool  # whether each row's token type is uploaded; otherwise all are 0
    kernel: AttentionKernel

    @property
    def num_values(self) -> int:
        """int32 values that describe a batch of this shape."""
        return int(_sections(self)[-1].stop)

    @property
    def plan_items(self) -> int:
        """Rows of the attention plan."""
        return plan_capacity(self.kernel, self.rows, self.sequences)


@dataclass(frozen=True, slots=True)
class Inputs:
    """A batch's description on the device; all int32."""

    shape: Shape
    address: int  # of the description: `shape.num_values` values, with the sections below
    token_ids: Tensor  # [rows]
    positions: Tensor  # [rows]: of each token in its own sequence
    cu_seqlens: Tensor  # [sequences + 1]
    token_types: Tensor | None  # [rows]
    attention_plan: Tensor  # [shape.plan_items, 2]
    at_rest: bool  # whether the addresses are the same for every batch of this shape, as graphs need


@dataclass(frozen=True, slots=True)
class OneSequence:
    """The description of one sequence without types, for all of one length: only token ids are written anew.

    A single request on an idle device waits for the host, and a whole description takes longer than its upload.
    """

    inputs: Inputs
    values: Int32Array  # a description, whose token ids do not matter

    def is_of(self, batch: PackedBatch) -> bool:
        """Whether a batch with as many tokens is one sequence without types. False for a batch that is not valid."""
        length = len(batch.token_ids)
        is_one = batch.cu_seqlens.tolist() == [0, length] and batch.max_seqlen == length and len(batch.options) == 1
        return is_one and batch.token_type_ids is None

    def write(self, batch: PackedBatch, out: Int32Array) -> None:
        """As `describe`."""
        out[:] = self.values
        out[: len(batch.token_ids)] = batch.token_ids


def exact_shape(batch: PackedBatch, kernel: AttentionKernel, *, has_types: bool = True) -> Shape:
    """The batch's own shape, without spare rows or sequences. has_types: whether the model tells token types apart."""
    return Shape(
        rows=len(batch.token_ids),
        sequences=len(batch.cu_seqlens) - 1,
        max_seqlen=batch.max_seqlen,
        has_types=has_types and batch.token_type_ids is not None,
        kernel=kernel,
    )


def describe(batch: PackedBatch, shape: Shape, out: Int32Array, own_positions: Int32Array | None = None) -> None:
    """Write the batch's description, `shape.num_values` values, to `out`. ValueError if it does not fit the shape.

    own_positions: [T], where tokens have other positions than those of their places.
    """
    num_tokens = len(batch.token_ids)
    token_ids, positions, cu_seqlens, token_types, plan = (out[section] for section in _sections(shape))
    _fill_bounds(cu_seqlens, batch.cu_seqlens, shape)
    token_ids[:num_tokens] = batch.token_ids
    token_ids[num_tokens:] = 0
    positions[:] = _arange(shape.rows)
    positions -= np.repeat(cu_seqlens[:-1], np.diff(cu_seqlens))
    if own_positions is not None:
        positions[:num_tokens] = own_positions
    if shape.has_types:
        token_types[:num_tokens] = 0 if batch.token_type_ids is None else batch.token_type_ids
        token_types[num_tokens:] = 0
    plan.reshape(-1, 2)[:] = plan_items(shape.kernel, cu_seqlens, shape.plan_items)


def views(device: Tensor, shape: Shape, *, at_rest: bool = False) -> Inputs:
    """The sections of a description in `device`, int32 [at least shape.num_values]."""
    token_ids, positions, cu_seqlens, token_types, plan = (device[section] for section in _sections(shape))
    return Inputs(
        shape=shape,
        address=device.data_ptr(),
        token_ids=token_ids,
        positions=positions,
        cu_seqlens=cu_seqlens,
        token_types=token_types if shape.has_types else None,
        attention_plan=plan.view(-1, 2),
        at_rest=at_rest,
    )


def _fill_bounds(bounds: Int32Array, own: Int32Array, shape: Shape) -> None:
    """Write the bounds of all sequences: the batch's own, then those that fill the spare rows, then empty ones."""
    num_own, end = len(own), int(own[-1])
    if num_own > len(bounds) or end > shape.rows:
        raise ValueError(f"A batch of {num_own - 1} sequences with {end} tokens does not fit {shape}. This is a bug.")
    bounds[:num_own] = own
    spare = range(end + shape.max_seqlen, shape.rows, shape.max_seqlen)
    bounds[num_own : num_own + len(spare)] = spare
    bounds[num_own + len(spare) :] = shape.rows
    if bounds[-1] != shape.rows:
        raise ValueError(f"No sequence is left for the spare rows of {shape}. This is a bug.")


@lru_cache(maxsize=1024)
def _sections(shape: Shape) -> tuple[slice, ...]:
    """The token ids, positions, cu_seqlens, token types and plan among the values."""
    sizes = shape.rows, shape.rows, shape.sequences + 1, shape.rows if shape.has_types else 0, 2 * shape.plan_items
    return sections_of(sizes)


@lru_cache(maxsize=1024)
def _arange(count: int) -> Int32Array:
    return np.arange(count, dtype=np.int32)
