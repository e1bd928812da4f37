"""What a batch's kernels need to know of it, laid out on the host and copied to the device at once, asynchronously."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from penstock.engine.types import Int32Array, PackedBatch

_SECTION = 64  # int32 values: sections begin at multiples of 256 bytes


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a batch as the device sees it. Everything on the device depends on the batch through this alone.

    `rows` may exceed the batch's tokens, and `slots` its sequences: the rest of the rows are sequences of their own, of
    token 0, so that no kernel ever meets an undefined row; the rest of the slots are empty sequences.
    """

    rows: int
    slots: int
    max_seqlen: int  # at least that of every sequence
    has_types: bool

    @property
    def num_values(self) -> int:
        """int32 values that describe a batch of this shape."""
        return self._types_start + (_padded(self.rows) if self.has_types else 0)

    @property
    def _cu_start(self) -> int:
        return 2 * _padded(self.rows)

    @property
    def _types_start(self) -> int:
        return self._cu_start + _padded(self.slots + 1)


@dataclass(frozen=True, slots=True)
class Inputs:
    """A batch's description on the device; all int32."""

    shape: Shape
    token_ids: Tensor  # [rows]
    positions: Tensor  # [rows]: of each token in its own sequence
    cu_seqlens: Tensor  # [slots + 1]
    token_types: Tensor | None  # [rows]


def exact_shape(batch: PackedBatch) -> Shape:
    """No spare rows or slots."""
    return Shape(len(batch.token_ids), len(batch.cu_seqlens) - 1, batch.max_seqlen, batch.token_type_ids is not None)


def describe(batch: PackedBatch, shape: Shape, out: Int32Array) -> None:
    """Write the batch's description, `shape.num_values` values, to `out`. ValueError when it does not fit the shape."""
    num_tokens, rows = len(batch.token_ids), shape.rows
    cu_seqlens = _with_spare_sequences(batch.cu_seqlens, shape)
    lengths = np.diff(cu_seqlens)
    cu_start, types_start = shape._cu_start, shape._types_start
    out[:num_tokens] = batch.token_ids
    out[num_tokens:rows] = 0
    positions = out[_padded(rows) : _padded(rows) + rows]
    np.subtract(np.arange(rows, dtype=np.int32), np.repeat(cu_seqlens[:-1], lengths), out=positions)
    out[cu_start : cu_start + shape.slots + 1] = cu_seqlens
    if batch.token_type_ids is not None:
        out[types_start : types_start + num_tokens] = batch.token_type_ids
        out[types_start + num_tokens : types_start + rows] = 0


def views(device: Tensor, shape: Shape) -> Inputs:
    """The sections of a description that was copied to `device`, int32 [at least shape.num_values]."""
    padded, cu_start, types_start = _padded(shape.rows), shape._cu_start, shape._types_start
    return Inputs(
        shape=shape,
        token_ids=device[: shape.rows],
        positions=device[padded : padded + shape.rows],
        cu_seqlens=device[cu_start : cu_start + shape.slots + 1],
        token_types=device[types_start : types_start + shape.rows] if shape.has_types else None,
    )


class Staging:
    """A few pinned buffers in turn: one is written while the copy from another may still be running."""

    def __init__(self, num_buffers: int = 4) -> None:
        self._buffers = [torch.empty(0, dtype=torch.int32) for _ in range(num_buffers)]
        self._copied: list[torch.cuda.Event | None] = [None] * num_buffers
        self._next = 0

    def upload(self, batch: PackedBatch, shape: Shape, device: Tensor) -> None:
        """Copy the batch's description to `device`, in the order of the current stream."""
        turn, self._next = self._next, (self._next + 1) % len(self._buffers)
        copied = self._copied[turn]
        if copied is not None:
            copied.synchronize()
        if len(self._buffers[turn]) < shape.num_values:
            self._buffers[turn] = torch.empty(2 * shape.num_values, dtype=torch.int32, pin_memory=True)
        pinned = self._buffers[turn][: shape.num_values]
        describe(batch, shape, pinned.numpy())
        device[: shape.num_values].copy_(pinned, non_blocking=True)
        if copied is None:
            copied = self._copied[turn] = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        copied.record()


def _with_spare_sequences(cu_seqlens: Int32Array, shape: Shape) -> Int32Array:
    """`cu_seqlens` of all slots: the batch's own, then sequences that fill the spare rows, then empty ones."""
    own, num_tokens = len(cu_seqlens) - 1, int(cu_seqlens[-1])
    fill = np.minimum(num_tokens + shape.max_seqlen * np.arange(1, shape.slots - own + 1), shape.rows)
    whole = np.concatenate([cu_seqlens, fill.astype(np.int32)])
    if num_tokens > shape.rows or own > shape.slots or whole[-1] != shape.rows:
        raise ValueError(f"A batch of {own} sequences with {num_tokens} tokens does not fit {shape}. This is a bug.")
    return whole


def _padded(count: int) -> int:
    return -(-count // _SECTION) * _SECTION
