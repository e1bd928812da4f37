"""The task `sequence` in the worker: a sequence's fields as checked work for the cell runner."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.engine.cells.emissions import EmissionColumns
from penstock.engine.cells.errors import EmptySequence, InvalidGraph
from penstock.engine.cells.graph import GraphLimits, Unfolded
from penstock.engine.cells.model import CellModel
from penstock.producer.errors import EmptyInput, InvalidRequest


@dataclass(frozen=True, slots=True)
class SequenceWork:
    """The work of a `StepJob` of the cell runner: a graph that the model can run."""

    graph: Unfolded
    max_reply_bytes: int  # of its emissions, where no chain stops early


class SequenceChecks:
    """Makes work of the fields of one sequence. Used on the event loop: the model's own `unfold` runs there."""

    def __init__(self, model: CellModel, num_slots: int, limits: GraphLimits | None = None) -> None:
        """num_slots: state slots of one device, without NO_SLOT."""
        self._model = model
        self._columns = EmissionColumns(model.specs)
        self._num_slots = num_slots
        self._limits = limits or GraphLimits()

    def work(self, fields: Mapping[str, Any]) -> SequenceWork:
        """Unfold a sequence.

        Raises:
            InvalidRequest: the graph is none that can run, or `unfold` raised; the message says why.
            EmptyInput: a sequence without a step.
        """
        try:
            graph = self._model.unfold(fields, self._limits)
            graph.require_slots(self._num_slots)
        except EmptySequence as error:
            raise EmptyInput(_sentence(error)) from error
        except InvalidGraph as error:
            raise InvalidRequest(_sentence(error)) from error
        return SequenceWork(graph, self._columns.max_bytes(graph))


def _sentence(error: InvalidGraph) -> str:
    """The message, named by its kind and cut: it may quote the request."""
    return f"{type(error).__name__}: {error}"[:500]
