"""CUDA graphs of forward passes: captured ahead or when a shape comes again, replayed from then on."""

from collections.abc import Callable

import structlog
import torch
from torch import Tensor

from penstock.engine.gpu.inputs import Shape
from penstock.engine.gpu.memory import give_back

_MAX_GRAPHS = 1024
_MAX_HELD_BYTES = 1 << 30
# What the driver keeps for a graph shows in the device's free memory alone, and so does what other processes do
# meanwhile: no more than this is put down to one graph.
_MAX_DRIVER_BYTES = 4 << 20

_Graph = tuple[torch.cuda.CUDAGraph, Tensor]

log = structlog.get_logger("penstock.engine")


class Graphs:
    """Graphs by shape. All share one pool and run in the order of one stream, so they may overwrite each other.

    A shape is captured ahead, by `prepare`, or when it comes for the second time. If its capture fails, that is logged
    once, and the shape is launched kernel by kernel from then on. So is every new shape once there are too many graphs
    or they hold too much memory, which is logged once too: a graph that made room for another would be captured anew
    when its own shape returns, in the middle of requests, and captures are slower than any number of launches.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._captured: dict[Shape, _Graph] = {}
        self._seen: set[Shape] = set()
        self._refused: set[Shape] = set()
        self._held_bytes = 0
        self._is_full = False

    def __len__(self) -> int:
        return len(self._captured)

    @property
    def held_bytes(self) -> int:
        """Device memory that captures have taken, failed ones too, beside the workspace. None of it is given back."""
        return self._held_bytes

    @property
    def is_prepared(self) -> bool:
        """Whether there are as many as may be captured ahead: half, as what really comes is worth more than a guess."""
        return 2 * len(self._captured) >= _MAX_GRAPHS or 2 * self._held_bytes >= _MAX_HELD_BYTES

    def prepare(self, shape: Shape, work: Callable[[], Tensor]) -> None:
        """Capture the shape, if it is not and may be. `work` as for `run`; the kernels that it launches are loaded, for
        a capture is no place to load one.
        """
        if shape not in self._captured and not self.is_prepared and self._may_capture(shape):
            self._capture(shape, work)

    def run(self, shape: Shape, work: Callable[[], Tensor]) -> Tensor:
        """The result of `work`, from its graph where there is one.

        `work` depends on the batch through `shape` and through memory that stays where it is, alone.
        """
        found = self._captured.get(shape)
        if found is None and self._is_due(shape):
            found = self._capture(shape, work)
        if found is None:
            return work()
        graph, result = found
        graph.replay()
        return result

    def _is_due(self, shape: Shape) -> bool:
        if shape in self._seen:
            return self._may_capture(shape)
        self._seen.add(shape)
        return False

    def _may_capture(self, shape: Shape) -> bool:
        if self._is_full or shape in self._refused:
            return False
        self._is_full = len(self._captured) >= _MAX_GRAPHS or self._held_bytes >= _MAX_HELD_BYTES
        if self._is_full:
            log.warning("graphs_full", graphs=len(self._captured), held_bytes=self._held_bytes)
        return not self._is_full

    def _capture(self, shape: Shape, work: Callable[[], Tensor]) -> _Graph | None:
        """None when it fails, for this time and for ever."""
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        give_back()  # as the capture does, which would hide what it takes
        before = self._memory()
        try:
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                result = work()
        except (RuntimeError, ValueError) as error:
            self._refused.add(shape)
            log.warning("graph_not_captured", shape=str(shape), error=str(error).partition("\n")[0])
            return None
        finally:
            torch.cuda.set_stream(stream)  # some versions of torch leave the capture's when its end fails
            self._count(before, self._memory())
        self._captured[shape] = graph, result
        return self._captured[shape]

    def _memory(self) -> tuple[int, int]:
        """Bytes that torch's allocator holds, and that are free on the device."""
        return torch.cuda.memory_reserved(self._device), torch.cuda.mem_get_info(self._device)[0]

    def _count(self, before: tuple[int, int], after: tuple[int, int]) -> None:
        pool_bytes = max(0, after[0] - before[0])
        driver_bytes = before[1] - after[1] - pool_bytes
        self._held_bytes += pool_bytes + min(max(0, driver_bytes), _MAX_DRIVER_BYTES)
