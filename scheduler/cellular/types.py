"""Inputs and outputs of the cellular scheduler. Nothing here knows of tensors, tokens or a clock."""

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.scheduler.types import RejectedJob

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

MAX_PASSES = 8
_SIZES = struct.Struct("=4i")
_NO_JOBS = np.zeros(0, np.int64)
_NO_ROWS = np.zeros(0, np.int32)


class CellRule(NamedTuple):
    """How tasks of one cell type are formed."""

    name: str
    max_rows: int  # of one task
    max_steps: int = 1  # of one task: the longest quantum; 1 for a cell whose nodes are single steps
    priority: int = 0  # higher first: a later stage of the same requests (BatchMaker, section 4.3)
    max_size: int | None = None  # of one task: the sum of its jobs' sizes; a larger job runs alone
    max_passes: int = MAX_PASSES  # tasks of other cells before a ready one has its turn, whatever its priority


@dataclass(frozen=True)  # no slots: of a cached property
class CellGraph:
    """Nodes that a request unfolds into. They are in topological order; a chain of one cell type is one node."""

    cells: Int32Array  # [N] index of each node's CellRule
    steps: Int32Array  # [N] steps of each node, at least 1; at most so many where the node may stop earlier
    dependencies: (
        Int32Array  # [N, W] nodes that must have ended, each earlier than the node that waits for it; -1: none
    )

    @classmethod
    def of_stages(cls, *stages: tuple[int, int]) -> "CellGraph":
        """Chains of (cell, steps), of which each waits for the one before."""
        cells, steps = np.array(stages, np.int32).reshape(-1, 2).T.copy()
        return cls(cells, steps, np.arange(-1, len(stages) - 1, dtype=np.int32)[:, None])

    @cached_property
    def packed(self) -> bytes:
        """The sizes of the arrays, and the arrays, as int32: those of many jobs end to end are a kernel's."""
        sizes = _SIZES.pack(len(self.cells), len(self.steps), *self.dependencies.shape)
        parts = self.cells, self.steps, self.dependencies.ravel()
        return sizes + np.concatenate(parts, dtype=np.int32, casting="same_kind").tobytes()


class CellJob(NamedTuple):
    """A request that waits for its cells."""

    id: int  # unique among active jobs; the caller's handle
    graph: CellGraph
    arrival: float  # seconds, on the caller's clock
    deadline: float | None = None
    bulk: bool = False
    slots: int = 1  # state slots, or pages, that it holds from the first task until it ends
    size: int = 1  # of a row, in tasks of cells with a `max_size`


class CellTask(NamedTuple):
    """Nodes of one cell type that run together, in rows."""

    id: int
    cell: int  # index of its CellRule
    jobs: Int64Array  # [R]
    nodes: Int32Array  # [R]
    steps: Int32Array  # [R] steps that each row runs at most, in [1, quantum]
    quantum: int
    predicted_s: float
    begun: Int64Array = _NO_JOBS  # jobs of which it is the first task
    rejected: tuple[RejectedJob, ...] = ()  # jobs that expired; they have left
    rows: Int32Array = _NO_ROWS  # [R] of the nodes, in the scheduler's own table
