"""Device memory of a forward's intermediates: the arena's chunks as tensors, and buffers as views of them."""

import contextlib
from functools import lru_cache

import torch
from torch import Tensor

from penstock.engine.memory import Arena, MemoryPlan, MemoryPlanner
from penstock.engine.model.program import Program


def release_cached_memory() -> None:
    """Return memory that torch's allocator holds unused to the device, if the allocator can.

    After a failed capture torch 2.8's allocator refuses from then on, as if one were underway; that error is ignored.
    """
    with contextlib.suppress(RuntimeError):
        torch.cuda.empty_cache()


class Workspace:
    """Memory for the intermediates of one program, batch by batch, on one stream."""

    def __init__(self, program: Program, dtype: torch.dtype, device: torch.device) -> None:
        self._program = program
        self._dtype = dtype
        self._device = device
        self._planner = MemoryPlanner(program.lifetimes)
        self.arena: Arena[Tensor] = Arena(self._allocate)
        self._views = lru_cache(maxsize=256)(self._make_views)
        self._most_rows = 0  # of the batches since the last `trim`

    def reserve(self, rows: int) -> None:
        """Allocate memory for batches of up to `rows` rows."""
        self.arena.place(self._planner.plan(rows, self.arena.chunk_bytes))

    def buffers(self, rows: int) -> list[Tensor]:
        """A tensor [rows, width] for each buffer of the program."""
        self._most_rows = max(self._most_rows, rows)
        plan = self._planner.plan(rows, self.arena.chunk_bytes)
        self.arena.place(plan)
        regions = self._views(rows, self.arena.chunk_bytes)
        return [regions[region] for region in plan.region_of]

    def trim(self) -> None:
        """Release memory that the batches since the last call did not need. No work may be using the workspace.

        Raises OutOfMemoryError if the memory that they did need cannot be allocated again; the workspace is then empty.
        """
        most_rows, self._most_rows = self._most_rows, 0
        if self.arena.trim():
            self._views.cache_clear()  # the last references to the old chunks
            release_cached_memory()  # otherwise torch keeps them and cuts the new chunk out of one
            if most_rows:
                self.reserve(most_rows)

    def _make_views(self, rows: int, chunks: tuple[int, ...]) -> list[Tensor]:
        plan = self._planner.plan(rows, chunks)
        widths = dict(zip(plan.region_of, self._program.widths, strict=True))
        return [self._view(plan, region, rows, widths[region]) for region in range(len(plan.region_bytes))]

    def _view(self, plan: MemoryPlan, region: int, rows: int, width: int) -> Tensor:
        start = plan.region_offset[region]
        chunk = self.arena.buffers[plan.region_chunk[region]]
        return chunk[start : start + rows * width * self._dtype.itemsize].view(self._dtype).view(rows, width)

    def _allocate(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
