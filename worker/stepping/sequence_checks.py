"""The fields of a sequence as checked work for the cell runner. Imports torch."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.engine.cells.errors import EmptySequence, InvalidGraph
from penstock.engine.cells.graphs.graph import GraphLimits
from penstock.engine.cells.models.model import CellModel
from penstock.engine.cells.state.emissions import max_bytes
from penstock.producer.errors import EmptyInput, InvalidRequest
from penstock.worker.requests.sequence_work import SequenceWork

_MESSAGE_CHARS = 500  # it may quote the request


class SequenceChecks:
    """Unfolds sequences. Used on the event loop, where the model's own `unfold` runs too."""

    def __init__(self, model: CellModel, num_slots: int, limits: GraphLimits) -> None:
        """num_slots: state slots of a device, without NO_SLOT."""
        self._model = model
        self._num_slots = num_slots
        self._limits = limits

    def work(self, fields: Mapping[str, Any]) -> SequenceWork:
        """The work of a sequence.

        Raises:
            InvalidRequest: the graph is none that can run, or `unfold` raised; the message says why.
            EmptyInput: a sequence without a step.
        """
        try:
            graph = self._model.unfold(fields, self._limits)
            graph.require_slots(self._num_slots)
        except InvalidGraph as error:
            kind = EmptyInput if isinstance(error, EmptySequence) else InvalidRequest
            raise kind(f"{type(error).__name__}: {error}"[:_MESSAGE_CHARS]) from error
        num_steps = int(graph.steps.sum(dtype=np.int64))
        return SequenceWork(graph, num_steps, max_bytes(graph, self._model.specs))
