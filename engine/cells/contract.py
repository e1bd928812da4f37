"""Types of cellular batching (BatchMaker, EuroSys 2018): cells, batches of cells, and the engine that runs them.

A request unfolds into nodes. A node runs one cell for one step or, as a chain, for many. A batch of cells holds a row
for each node. Between batches the state of a node lies in a slot of a pool, so that any rows may run together.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from penstock.engine.errors import EngineError

Int32Array = npt.NDArray[np.int32]

NO_SLOT = 0  # a slot whose state is zeros: read where a node has no predecessor; never written
NO_NODE = -1  # in a graph: zeros are read in place of a node's state

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class StateSpec:
    """A named part of the state that a node hands to the next."""

    name: str
    width: int  # values of one slot
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True, slots=True)
class CellSpec:
    """States, inputs and emissions of a cell. Cells of equal specification and weights are one type, and run as one."""

    name: str
    states: tuple[StateSpec, ...]  # read of each predecessor, and written
    inputs: tuple[str, ...] = ()  # int32 values of each step, such as a token
    input_sizes: Mapping[str, int] = field(default_factory=dict)  # values of an input lie in [0, size); none: any int32
    emits: tuple[StateSpec, ...] = ()  # values of each step that leave the engine
    arity: int = 1  # slots that a row reads: 1 in a chain, 2 in a binary tree
    # An input that each further step of a chain takes from what the step before has emitted: input -> emission.
    feedback: Mapping[str, str] = field(default_factory=dict)
    stop: Mapping[str, int] = field(default_factory=dict)  # a chain ends after the step that emits this value
    max_rows: int = 512  # of one batch
    max_steps: int = 8  # of one batch; 1 for a cell whose nodes are single steps
    priority: int = 0  # higher first: a later stage of the same requests


# states: of each StateSpec [R, arity, width], or [R, width] where arity is 1; inputs: int32 [R] each.
# Returns new states [R, width] and emissions [R, width]. Pure: it may be captured into a CUDA graph.
# No row depends on the others. A step with weights is a torch.nn.Module, so that an engine can move it to its device.
Step = Callable[[Tensors, Tensors], tuple[Tensors, Tensors]]


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell type: its specification, and one step of it for R rows."""

    spec: CellSpec
    step: Step


@dataclass(slots=True)  # not frozen: that would cost each batch a microsecond. None is changed
class CellBatch:
    """R nodes of one cell type, each for up to `quantum` steps."""

    cell: str
    read: Int32Array  # [R, arity] slots; NO_SLOT: zeros
    write: Int32Array  # [R] slots, no two equal; may equal a slot that the same row reads
    inputs: Mapping[
        str, Int32Array
    ]  # [R, quantum] each; of an input with feedback, only column 0 of a first step counts
    steps: Int32Array  # [R] steps that each row runs at most, in [1, quantum]
    is_first: npt.NDArray[np.bool_]  # [R] whether a row's first input comes from `inputs` and not from feedback
    quantum: int


@dataclass(slots=True)  # not frozen: that would cost each batch a microsecond. None is changed
class CellOutput:
    """Results of a batch of cells, in the order of its rows."""

    emitted: Mapping[str, npt.NDArray[np.float32] | Int32Array]  # [R, quantum, width]; undefined beyond a row's steps
    steps: Int32Array  # [R] steps that ran; fewer than asked where a row stopped; 0 where it had stopped before
    is_stopped: npt.NDArray[np.bool_]  # [R] whether a row's stop condition holds
    device_s: float
    failed: Mapping[int, EngineError] = field(
        default_factory=dict
    )  # row -> why it has no result; its state is undefined


class RunningCells(Protocol):
    """A batch of cells that was started."""

    def result(self) -> CellOutput:
        """Wait for the batch. Called once, in the order in which batches were started."""
        ...


class StepEngine(Protocol):
    """Runs batches of cells. The slots' states stay on its device between batches."""

    @property
    def cells(self) -> Mapping[str, CellSpec]: ...

    @property
    def num_slots(self) -> int:
        """Slots of the pool, NO_SLOT included."""
        ...

    def start(self, batch: CellBatch) -> RunningCells:
        """Queue a batch behind those that were started before, and return. Called by one thread; two may be underway.

        A row may read what a batch that still runs writes: batches run in the order of their start. A row whose chain
        has stopped in a batch before does nothing (steps 0). Raises InvalidBatch.
        """
        ...

    def idle(self) -> bool:
        """Do a piece of work that makes later batches faster, if there is any. Returns whether it did.

        Called by the same thread, with no batch underway. Raises nothing that the next batch would not raise.
        """
        ...
