"""Pinned host memory, which the device copies from and to without waiting for the host; reused from batch to batch."""

from collections import deque
from collections.abc import Hashable, Mapping
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from penstock.engine.gpu.inputs import Inputs, describe
from penstock.engine.types import Int32Array, PackedBatch

_HALF = 8  # buffers of an upload ring that share an event

K = TypeVar("K", bound=Hashable)


class UploadRing:
    """Buffers for batch descriptions, used in turn: one is written while the copies from others may still run.

    An event for each copy would cost the host as much as the copy. The buffers of each half of the ring share one,
    recorded behind the half's last copy and waited for before the half's first buffer is written again.
    """

    def __init__(self) -> None:
        self._pinned = [torch.empty(0, dtype=torch.int32)] * (2 * _HALF)
        self._arrays: list[Int32Array] = [np.empty(0, np.int32)] * (2 * _HALF)  # the same memory
        self._copied = [_event(), _event()]  # an event that was never recorded counts as one that has come
        self._turn = 0

    def upload(self, batch: PackedBatch, inputs: Inputs) -> None:
        """Copy the batch's description to `inputs`, which are of its shape, in the order of the current stream."""
        turn, num_values = self._turn, inputs.shape.num_values
        half, place = divmod(turn, _HALF)
        if place == 0:
            self._copied[half].synchronize()
        if len(self._arrays[turn]) < num_values:
            self._pinned[turn] = torch.empty(2 * num_values, dtype=torch.int32, pin_memory=True)
            self._arrays[turn] = self._pinned[turn].numpy()
        describe(batch, inputs.shape, self._arrays[turn][:num_values])
        inputs.values.copy_(self._pinned[turn][:num_values], non_blocking=True)
        if place == _HALF - 1:
            self._copied[half].record()
        self._turn = (turn + 1) % len(self._pinned)


class Landing:
    """What one batch underway holds: pinned memory for its results, and the events around its work."""

    def __init__(self) -> None:
        self.started, self.ended = _event(enable_timing=True, blocking=True), _event(enable_timing=True, blocking=True)
        self._pinned = torch.empty(0, dtype=torch.float32)

    def fetch(self, results: Mapping[K, Tensor]) -> dict[K, Tensor]:
        """Queue the copies of float32 results into the pinned memory. Returns views of it, filled once they are done.

        The work on the device that used the memory before has ended.
        """
        num_values = sum(map(Tensor.numel, results.values()))
        if len(self._pinned) < num_values:
            self._pinned = torch.empty(2 * num_values, dtype=torch.float32, pin_memory=True)
        fetched, start = {}, 0
        for name, result in results.items():
            end = start + result.numel()
            fetched[name] = self._pinned[start:end].view(result.shape)
            fetched[name].copy_(result, non_blocking=True)
            start = end
        return fetched


class Landings:
    """A batch holds one from `take` until its rows were copied out, then `put`: there are as many as are underway.

    One thread takes, another may put.
    """

    def __init__(self) -> None:
        self._free: deque[Landing] = deque()

    def take(self) -> Landing:
        return self._free.popleft() if self._free else Landing()

    def put(self, landing: Landing) -> None:
        """Return one that nothing reads or writes any more."""
        self._free.append(landing)

    def clear(self) -> None:
        """Release the memory that no batch holds."""
        self._free.clear()


def _event(*, enable_timing: bool = False, blocking: bool = False) -> torch.cuda.Event:
    """blocking: a thread that waits for the event sleeps, where CUDA's default is to spin."""
    return torch.cuda.Event(enable_timing=enable_timing, blocking=blocking)  # type: ignore[no-untyped-call]  # torch
