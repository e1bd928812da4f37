"""Requests as the policies of the evaluation take them."""

from dataclasses import dataclass, replace

import numpy as np

from penstock.engine.cells.graphs.graph import InputValues, Unfolded
from penstock.ops.bench.cellular.policies.policies import padded
from penstock.scheduler.cellular import CellGraph


@dataclass(frozen=True, slots=True)
class CellWork:
    """A request as the scheduler and the sessions take it, made before it is timed."""

    unfolded: Unfolded
    graph: CellGraph
    slots: int

    @classmethod
    def of(cls, unfolded: Unfolded) -> "CellWork":
        graph = CellGraph(unfolded.cells, unfolded.steps, *unfolded.dependencies)
        return cls(unfolded, graph, unfolded.num_slots)


def padded_work(work: CellWork, width: int) -> CellWork:
    """A request of chains; those over given tokens are padded to multiples of `width` by their last token."""
    unfolded = work.unfolded
    steps = unfolded.steps.copy()
    inputs = {}
    for name, given in unfolded.inputs.items():
        is_given = given.counts == unfolded.steps  # others have one value for all steps
        steps[is_given] = padded(unfolded.steps[is_given], width)
        counts = np.where(is_given, steps, given.counts)
        parts = np.split(given.values, given.offsets[1:-1])
        longer = [np.pad(part, (0, count - len(part)), "edge") for part, count in zip(parts, counts, strict=True)]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        inputs[name] = InputValues(np.concatenate(longer), offsets)
    return CellWork.of(replace(unfolded, steps=steps, inputs=inputs))
