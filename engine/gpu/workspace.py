"""The arena's chunks as tensors, and a plan's buffers as views of them."""

import contextlib
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from penstock.engine.memory import Arena, Plan, Planner
from penstock.engine.model.program import Program


@dataclass(frozen=True, slots=True)
class Chunk:
    """Device memory of the arena."""

    bytes: Tensor  # uint8

    @property
    def address(self) -> int:
        return self.bytes.data_ptr()


def release_cached_memory() -> None:
    """Return memory that torch's allocator holds unused to the device, if the allocator can.

    After a failed capture torch 2.8's allocator refuses for ever, as if one were underway; that error is ignored.
    """
    with contextlib.suppress(RuntimeError):
        torch.cuda.empty_cache()


class Workspace:
    """Where the intermediates of one program lie, batch by batch. One stream; nothing is allocated after warm-up."""

    def __init__(self, program: Program, dtype: torch.dtype, device: torch.device) -> None:
        self._program = program
        self._dtype = dtype
        self._device = device
        self._planner = Planner(program.lifetimes)
        self.arena: Arena[Chunk] = Arena(self._allocate, lambda chunk: None)  # torch frees what is no longer held
        self._views = lru_cache(maxsize=256)(self._make_views)
        self._most_rows = 0  # of a batch since the last `trim`

    def reserve(self, rows: int) -> None:
        """Hold memory for batches of up to so many rows."""
        self.arena.place(self._planner.plan(rows, 1, self.arena.chunk_bytes))

    def buffers(self, rows: int) -> list[Tensor]:
        """A tensor [rows, width] for each buffer of the program."""
        self._most_rows = max(self._most_rows, rows)
        plan = self._planner.plan(rows, 1, self.arena.chunk_bytes)
        self.arena.place(plan)
        slots = self._views(rows, self.arena.chunk_bytes)
        return [slots[slot] for slot in plan.slot_of]

    def trim(self) -> None:
        """Give back to the device what the batches since the last call did not need.

        No work on the device may be using the workspace. If there is no memory for what they did need, OutOfMemoryError
        passes through, and the workspace is empty.
        """
        most_rows, self._most_rows = self._most_rows, 0
        if self.arena.trim():
            self._views.cache_clear()  # the last to hold the old chunks
            release_cached_memory()  # or torch would keep them, and cut the new chunk out of the largest
            if most_rows:
                self.reserve(most_rows)

    def _make_views(self, rows: int, chunks: tuple[int, ...]) -> list[Tensor]:
        plan = self._planner.plan(rows, 1, chunks)
        widths = dict(zip(plan.slot_of, self._program.widths, strict=True))
        return [self._view(plan, slot, rows, widths[slot]) for slot in range(len(plan.slot_bytes))]

    def _view(self, plan: Plan, slot: int, rows: int, width: int) -> Tensor:
        start = plan.slot_offset[slot]
        chunk = self.arena.buffers[plan.slot_chunk[slot]].bytes
        return chunk[start : start + rows * width * self._dtype.itemsize].view(self._dtype).view(rows, width)

    def _allocate(self, num_bytes: int) -> Chunk:
        return Chunk(torch.empty(num_bytes, dtype=torch.uint8, device=self._device))
