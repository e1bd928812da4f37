"""CUDA graphs of forward passes, one for each shape: captured ahead or while the device is idle, then replayed."""

import gc
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Generic, TypeVar

import structlog
import torch
from torch import Tensor

from penstock.engine.gpu.workspace import release_cached_memory

_MAX_GRAPHS = 1024
_MAX_HELD_BYTES = 1 << 30
# The driver's memory for a graph shows only in the device's free memory, which other processes change too. No more
# than this is attributed to one graph.
_MAX_DRIVER_BYTES = 4 << 20

_Graph = tuple[torch.cuda.CUDAGraph, Tensor]
Work = Callable[[], Tensor]  # one forward pass of a shape, or one batch of cells
Shape = TypeVar("Shape", bound=Hashable)

log = structlog.get_logger("penstock.engine")


class Graphs(Generic[Shape]):
    """Graphs by shape. All share one memory pool and run in the order of one stream, so they may overwrite each other.

    A shape is captured ahead by `capture`, or by `capture_next` once two batches have had it. A shape whose capture
    fails is never captured again, and its batches are launched kernel by kernel. So are batches of every new shape
    once the number or the memory of the graphs reaches its limit. Each is logged once. No graph is evicted: its shape
    would return, and a capture costs more than many launches.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._captured: dict[Shape, _Graph] = {}
        self._seen: set[Shape] = set()
        self._due: dict[Shape, None] = {}  # shapes of two batches or more, in the order of the second
        self._refused: set[Shape] = set()
        self._held_bytes = 0
        self._is_full = False

    def __len__(self) -> int:
        return len(self._captured)

    @property
    def held_bytes(self) -> int:
        """Device memory that captures have taken, failed ones too, beside the workspace. It is never released."""
        return self._held_bytes

    @property
    def is_prepared(self) -> bool:
        """Whether half of the limit is used. The other half is for the shapes of real batches."""
        return 2 * len(self._captured) >= _MAX_GRAPHS or 2 * self._held_bytes >= _MAX_HELD_BYTES

    @property
    def is_due(self) -> bool:
        """Whether `capture_next` has a shape to capture."""
        return bool(self._due)

    def run(self, shape: Shape, work: Work) -> Tensor:
        """The result of `work`, from the shape's graph if there is one. Never captures.

        `work` depends on the batch only through `shape` and through memory at fixed addresses.
        """
        found = self._captured.get(shape)
        if found is None:
            if shape in self._seen and shape not in self._refused and not self._is_full:
                self._due[shape] = None
            self._seen.add(shape)
            return work()
        graph, result = found
        graph.replay()
        return result

    def capture_next(self, work_of: Callable[[Shape], Work]) -> bool:
        """Capture one shape that is due, if any is. Returns whether one was. Called with no batch waiting."""
        shape = next(iter(self._due), None)
        if shape is None:
            return False
        self.capture(shape, work_of(shape))
        return True

    def capture(self, shape: Shape, work: Work) -> None:
        """Capture the shape, unless it was captured or refused. `work` as for `run`.

        The kernels that `work` launches are loaded already: no module can be loaded during a capture.
        """
        self._due.pop(shape, None)
        if shape in self._captured or shape in self._refused or self._is_full:
            return
        self._is_full = len(self._captured) >= _MAX_GRAPHS or self._held_bytes >= _MAX_HELD_BYTES
        if self._is_full:
            self._due.clear()
            log.warning("graphs_full", graphs=len(self._captured), held_bytes=self._held_bytes)
        else:
            self._capture(shape, work)

    def _capture(self, shape: Shape, work: Work) -> None:
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        _make_blas_handle(self._device)
        release_cached_memory()  # the capture releases it too, which would hide the memory that it takes
        before = self._memory()
        try:
            with (
                _no_collection(),
                torch.cuda.graph(
                    graph,
                    self._pool,
                    _capture_stream(self._device),
                    capture_error_mode="thread_local",
                ),
            ):
                result = work()
        except (RuntimeError, ValueError) as error:
            self._refused.add(shape)
            log.warning("graph_not_captured", shape=str(shape), error=str(error).partition("\n")[0])
        else:
            self._captured[shape] = graph, result
        finally:
            torch.cuda.set_stream(stream)  # some versions of torch leave the capture's stream set when its end fails
            self._count(before, self._memory())

    def _memory(self) -> tuple[int, int]:
        """Bytes that torch's allocator holds, and bytes that are free on the device."""
        return torch.cuda.memory_reserved(self._device), torch.cuda.mem_get_info(self._device)[0]

    def _count(self, before: tuple[int, int], after: tuple[int, int]) -> None:
        pool_bytes = max(0, after[0] - before[0])
        driver_bytes = before[1] - after[1] - pool_bytes
        self._held_bytes += pool_bytes + min(max(0, driver_bytes), _MAX_DRIVER_BYTES)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector off: it may free a graph of another engine, and CUDA refuses that during a capture."""
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()


def _make_blas_handle(device: torch.device) -> None:
    """Each thread has a cuBLAS handle of its own, made when it is first needed; no capture can make one.

    Cheap where the thread has one.
    """
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.mem_get_info()  # makes the device's context the thread's, of which cuBLAS would warn
            torch.cuda.current_blas_handle()  # type: ignore[no-untyped-call]  # torch leaves it untyped


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream that captures on a device share. torch's own is on the device of the process's first capture.

    cuBLAS keeps a workspace for each stream that it is captured on, which the graphs then use: with a stream for each
    capture, graphs would soon reach their limit of memory. So no two graphs of a device may run side by side.
    """
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
