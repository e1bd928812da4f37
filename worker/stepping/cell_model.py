"""A model made of cells: warmed up, and served step by step. Imports torch."""

import functools
import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import structlog

from penstock.engine import ServedCells
from penstock.engine.cells.emissions import max_bytes
from penstock.engine.cells.errors import EmptySequence, InvalidCell, InvalidGraph
from penstock.engine.cells.graph import GraphBuilder, GraphLimits
from penstock.engine.cells.models.model import CellModel
from penstock.engine.errors import UnsupportedCheckpoint
from penstock.producer.errors import EmptyInput, InvalidRequest
from penstock.producer.wire.sequence_codec import MAX_COLUMNS
from penstock.scheduler.settings import AdmissionName
from penstock.worker.batching.stage import ServedModel
from penstock.worker.requests.sequence_block import SequenceBlock
from penstock.worker.requests.sequence_work import SequenceWork
from penstock.worker.stepping.cell_runner import CellRunner
from penstock.worker.stepping.contract import StepJob
from penstock.worker.stepping.step_model import StepModel

_WARM_UP_S = 3.0  # after which no batch begins, but each cell's first
_WARM_UP_ROWS = (1, 8, 64)  # of one task
_MESSAGE_CHARS = 500  # it may quote the request

log = structlog.get_logger("penstock.cells")


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


def served_cells(served: ServedCells, admission: AdmissionName) -> Callable[[], ServedModel]:
    """Warm a model up, whose tasks are timed. Blocks for seconds. The result is called on the event loop.

    Raises InvalidCell for a step that does not do what its cell declares, and UnsupportedCheckpoint.
    """
    if len(served.info.emissions) > MAX_COLUMNS:
        raise UnsupportedCheckpoint(
            f"{served.info.name!r} emits {len(served.info.emissions)} names; a reply holds at most {MAX_COLUMNS}."
        )
    model = served.model
    # On a CPU `start` computes: a second task would only hold up the results of the first.
    max_tasks = 1 if served.info.device == "cpu" else 2
    runner = CellRunner(model.specs, served.engine(), admission, max_tasks)
    failed = _warm_up(runner, model)
    sound = [cell for cell in range(len(model.specs)) if cell not in failed]
    if not sound:
        raise InvalidCell(f"no cell can run a step of zeros, by which an idle engine is checked: {failed[0]}")
    checks = SequenceChecks(model, served.num_slots, served.limits)
    probe = one_step(model, sound[0])
    return functools.partial(StepModel, served.info, runner, _work, probe, read_fields=checks.work)


def one_step(model: CellModel, cell: int) -> SequenceWork:
    """A step of one cell, from zeros: whether an engine works at all."""
    spec = model.specs[cell]
    builder = GraphBuilder(model.specs, model.types, GraphLimits())
    zeros = {name: [0] for name in spec.inputs}
    builder.add(spec.name, steps=1, **zeros)
    return SequenceWork(builder.build(), 1, 0)


def _work(sequence: SequenceBlock) -> SequenceWork:
    if sequence.work is None:
        raise RuntimeError("A sequence of cells has no graph. This is a bug.")
    return sequence.work


def _warm_up(runner: CellRunner, model: CellModel) -> dict[int, BaseException]:
    """Run batches of growing size of each cell: libraries are loaded, and the scheduler learns the times of tasks.

    Returns the cells that fail on a step of zeros, which a cell may.
    """
    started, num_tasks = time.monotonic(), 0
    failed: dict[int, BaseException] = {}
    for rows, cell in itertools.product(_WARM_UP_ROWS, range(len(model.specs))):
        if rows > 1 and time.monotonic() - started > _WARM_UP_S:
            break
        work = one_step(model, cell)
        runner.add([StepJob(row, work, started, None, False) for row in range(rows)])
        while not runner.is_idle:
            for error in runner.advance(time.monotonic()).failed.values():
                failed[cell] = error
            num_tasks += 1
    log.info("steps_timed", tasks=num_tasks, rows=rows, seconds=round(time.monotonic() - started, 3))
    return failed
