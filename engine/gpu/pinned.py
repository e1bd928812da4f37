"""Pinned host memory, which the device copies from and to without waiting for the host; reused from batch to batch."""

from collections import deque
from collections.abc import Hashable, Mapping
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from penstock.engine.gpu.faults import DeviceFaults
from penstock.engine.kernels.library import copy_to_device
from penstock.engine.types import Int32Array

_HALF = 8  # buffers of an upload ring that share an event
_VALUE_BYTES = 4  # of int32

K = TypeVar("K", bound=Hashable)


class UploadRing:
    """Buffers for batch descriptions, used in turn: one is written while the copies from others may still run.

    An event for each copy would cost the host as much as the copy. The buffers of each half of the ring share one,
    recorded behind the half's last copy and waited for before the half's first buffer is written again.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers = [_Buffer(np.empty(0, np.int32), 0)] * (2 * _HALF)
        self._copied = [_event(), _event()]  # an event that was never recorded counts as one that has come
        self._turn = 0

    def buffer(self, num_values: int) -> Int32Array:
        """Memory [num_values] for the next `upload`."""
        half, place = divmod(self._turn, _HALF)
        if place == 0:
            self._copied[half].synchronize()
        if len(self._buffers[self._turn].values) < num_values:
            pinned = torch.empty(2 * num_values, dtype=torch.int32, pin_memory=True)
            self._buffers[self._turn] = _Buffer(pinned.numpy(), pinned.data_ptr())
        return self._buffers[self._turn].values[:num_values]

    def upload(self, address: int, num_values: int) -> None:
        """Copy what was written to the last `buffer` to the device, in the order of the current stream."""
        half, place = divmod(self._turn, _HALF)
        copy_to_device(address, self._buffers[self._turn].address, num_values * _VALUE_BYTES, self._device)
        if place == _HALF - 1:
            self._copied[half].record()
        self._turn = (self._turn + 1) % len(self._buffers)


class _Buffer(NamedTuple):
    values: Int32Array  # keeps the pinned memory
    address: int


class Landing:
    """Resources of one batch underway: pinned memory for its results, and the events around its work."""

    def __init__(self) -> None:
        self.started = _event(enable_timing=True)
        self._ends = {is_brief: _event(enable_timing=True, blocking=not is_brief) for is_brief in (True, False)}
        self._ended = self._ends[True]
        self._pinned = torch.empty(0, dtype=torch.float32)

    def end(self, stream: torch.cuda.Stream, *, is_brief: bool) -> None:
        """The batch has no more work. is_brief: whether a thread that waits for its end spins instead of sleeping."""
        self._ended = self._ends[is_brief]
        self._ended.record(stream)

    def wait(self, faults: DeviceFaults) -> float:
        """Wait for the end of the batch, without the GIL. Returns the seconds that the device took."""
        try:
            self._ended.synchronize()
        except RuntimeError as error:
            faults.sort(error)
        return float(self.started.elapsed_time(self._ended)) / 1e3

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
