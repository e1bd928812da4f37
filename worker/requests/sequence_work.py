"""The work of a sequence for the cell runner. Imports no torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from penstock.scheduler.cellular import CellGraph

if TYPE_CHECKING:
    from penstock.engine.cells.graph import Unfolded


@dataclass(frozen=True)  # no slots: of a cached property
class SequenceWork:
    """The work of a `StepJob` of the cell runner: a graph that the model can run."""

    graph: "Unfolded"
    num_steps: int  # of all nodes, at most
    reply_bytes: int  # of its emissions, at most: where no chain stops early

    @cached_property
    def cell_graph(self) -> CellGraph:
        """The graph as the scheduler takes it."""
        return CellGraph(self.graph.cells, self.graph.steps, self.graph.reads)

    @cached_property
    def num_slots(self) -> int:
        """State slots that it acquires at once."""
        return self.graph.num_slots


ReadFields = Callable[[Mapping[str, Any]], SequenceWork]  # of a sequence; raises InvalidRequest
