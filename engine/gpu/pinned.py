"""Pinned host memory, which the device copies from and to without waiting for the host; reused from batch to batch."""

from collections import deque

import torch
from torch import Tensor

from penstock.engine.gpu.inputs import Shape, describe
from penstock.engine.types import PackedBatch


class UploadRing:
    """Buffers for batch descriptions, used in turn: one is written while the copy from another may still run."""

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


class ResultBuffers:
    """Buffers for results, float32. A batch holds its buffer from `take` until the rows were copied out, then `put`.

    So no buffer is written while a batch still needs it, and there are as many as there were batches underway at once.
    One thread takes, another may put.
    """

    def __init__(self) -> None:
        self._free: deque[Tensor] = deque()

    def take(self, num_values: int) -> Tensor:
        """A buffer of at least `num_values` values."""
        buffer = self._free.popleft() if self._free else None
        if buffer is None or len(buffer) < num_values:
            buffer = torch.empty(2 * num_values, dtype=torch.float32, pin_memory=True)
        return buffer

    def put(self, buffer: Tensor) -> None:
        """Return a buffer that nothing reads or writes any more."""
        self._free.append(buffer)

    def clear(self) -> None:
        """Release the buffers that no batch holds."""
        self._free.clear()
