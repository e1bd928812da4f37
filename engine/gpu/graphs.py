"""CUDA graphs of forward passes: captured when a shape comes again, replayed from then on."""

from collections import OrderedDict
from collections.abc import Callable

import structlog
import torch
from torch import Tensor

from penstock.engine.gpu.inputs import Shape

_MAX_GRAPHS = 256
_MAX_POOL_BYTES = 1 << 30

log = structlog.get_logger("penstock.engine")


class Graphs:
    """Graphs by shape. All share one pool and run in the order of one stream, so they may overwrite each other.

    A shape is captured when it comes for the second time. If its capture fails, that is logged once, and the shape is
    launched kernel by kernel from then on; so is everything new once captures hold too much memory.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._captured: OrderedDict[Shape, tuple[torch.cuda.CUDAGraph, Tensor]] = OrderedDict()
        self._seen: set[Shape] = set()
        self._refused: set[Shape] = set()
        self._held_bytes = 0

    def __len__(self) -> int:
        return len(self._captured)

    @property
    def held_bytes(self) -> int:
        """Device memory that captures have taken, beside the workspace."""
        return self._held_bytes

    def run(self, shape: Shape, work: Callable[[], Tensor]) -> Tensor:
        """The result of `work`, from its graph where there is one.

        `work` depends on the batch through `shape` and through memory that stays where it is, alone.
        """
        found = self._captured.get(shape)
        if found is None:
            if not self._is_due(shape) or not self._capture(shape, work):
                return work()
            found = self._captured[shape]
        self._captured.move_to_end(shape)
        graph, result = found
        graph.replay()
        return result

    def _is_due(self, shape: Shape) -> bool:
        if shape in self._refused or self._held_bytes > _MAX_POOL_BYTES:
            return False
        if shape in self._seen:
            return True
        self._seen.add(shape)
        return False

    def _capture(self, shape: Shape, work: Callable[[], Tensor]) -> bool:
        if len(self._captured) == _MAX_GRAPHS:
            self._captured.popitem(last=False)
        graph = torch.cuda.CUDAGraph()
        before = torch.cuda.memory_reserved(self._device)
        try:
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                result = work()
        except (RuntimeError, ValueError) as error:
            self._refused.add(shape)
            log.warning("graph_not_captured", shape=str(shape), error=str(error).splitlines()[0])
            return False
        self._held_bytes += max(0, torch.cuda.memory_reserved(self._device) - before)
        self._captured[shape] = graph, result
        return True
