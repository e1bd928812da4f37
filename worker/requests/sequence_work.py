"""The work of a sequence for the cell runner. Imports no torch."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.engine.cells.graph import Unfolded


@dataclass(frozen=True, slots=True)
class SequenceWork:
    """The work of a `StepJob` of the cell runner: a graph that the model can run."""

    graph: "Unfolded"
    num_steps: int  # of all nodes, at most
    reply_bytes: int  # of its emissions, at most: where no chain stops early
