"""A loop that runs requests as cells and picks ready nodes at random, in place of the scheduler."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock.engine.cells.contract import NO_NODE, StepEngine
from penstock.engine.cells.cpu import CpuStepEngine
from penstock.engine.cells.emissions import Emitted, emissions_of, split
from penstock.engine.cells.graph import Unfolded
from penstock.engine.cells.models.model import CellModel
from penstock.engine.cells.sessions import SessionBatch, Sessions
from penstock.engine.errors import EngineError

Request = Mapping[str, Any]


class RandomLoop:
    """Requests that join and leave at random. After each batch all slots and rows are accounted for."""

    def __init__(
        self,
        model: CellModel,
        *,
        num_slots: int = 64,
        seed: int = 0,
        depth: int = 1,
        quantum: int | None = None,
        engine: StepEngine | None = None,
    ) -> None:
        """depth: batches that are underway at once. quantum: of every batch; None: random."""
        self.model = model
        self.sessions = Sessions(model.specs, num_slots)
        self.engine = engine or CpuStepEngine(model.cells, num_slots)
        self.results: dict[int, Mapping[str, Emitted]] = {}  # by emission
        self.errors: dict[int, EngineError] = {}
        self.num_batches = 0
        self._quantum = quantum
        self._random = random.Random(seed)
        self._depth = depth
        self._waiting: list[tuple[int, Unfolded]] = []
        self._graphs: dict[int, Unfolded] = {}
        self._keys: dict[int, int] = {}  # of sessions, by request
        self._left: dict[tuple[int, int], int] = {}  # (request, node) -> steps not yet begun, of ready nodes
        self._known: set[tuple[int, int]] = set()  # nodes that were ready at some time
        self._to_run: dict[tuple[int, int], int] = {}  # steps that have not run, of known nodes
        self._ended: set[tuple[int, int]] = set()
        self._underway: list[tuple[SessionBatch, list[tuple[int, int]], Any]] = []

    def add(self, id: int, request: Request) -> None:
        self._waiting.append((id, self.model.unfold(request)))

    def run(self) -> None:
        """Until every request has left."""
        while self._waiting or self._graphs or self._underway:
            self._admit()
            if len(self._underway) < self._depth and self._left:
                self._start()
            elif self._underway:
                self._finish()
            else:
                raise AssertionError("requests wait, but nothing can run")
        self.sessions.check_integrity()

    def _admit(self) -> None:
        while self._waiting and (not self._graphs or self._random.random() < 0.7):
            id, graph = self._waiting[0]
            keys = self.sessions.open([graph])
            if keys is None:
                assert self._graphs, "an empty pool has no room for the request"
                return
            del self._waiting[0]
            self._graphs[id] = graph
            self._keys[id] = int(keys[0])
            self._note_ready(id)

    def _note_ready(self, id: int) -> None:
        graph = self._graphs[id]
        for node, (steps, reads) in enumerate(zip(graph.steps.tolist(), graph.reads.tolist(), strict=True)):
            key = (id, node)
            if key not in self._known and all(other == NO_NODE or (id, other) in self._ended for other in reads):
                self._known.add(key)
                self._left[key] = self._to_run[key] = steps

    def _start(self) -> None:
        id, node = self._random.choice(list(self._left))
        cell = int(self._graphs[id].cells[node])
        spec = self.model.specs[cell]
        alike = [key for key in self._left if self._graphs[key[0]].cells[key[1]] == cell]
        chosen = self._random.sample(alike, self._random.randint(1, min(len(alike), spec.max_rows)))
        quantum = min(spec.max_steps, self._quantum or self._random.randint(1, spec.max_steps))
        steps = [min(quantum, self._left[key]) for key in chosen]
        if self._quantum is None:
            steps = [self._random.randint(1, most) for most in steps]
        for key, taken in zip(chosen, steps, strict=True):
            self._left[key] -= taken
        self._left = {key: left for key, left in self._left.items() if left > 0}
        keys = np.array([self._keys[id] for id, _ in chosen], np.int32)
        nodes = np.array([node for _, node in chosen], np.int32)
        batch = self.sessions.batch(cell, keys, nodes, np.array(steps, np.int32), quantum)
        self._underway.append((batch, chosen, self.engine.start(batch.batch)))
        self.num_batches += 1

    def _finish(self) -> None:
        batch, chosen, running = self._underway.pop(0)
        output = running.result()
        applied = self.sessions.apply(batch, output)
        for key, ran, is_stopped in zip(chosen, output.steps.tolist(), output.is_stopped.tolist(), strict=True):
            self._to_run[key] -= ran
            if (is_stopped or self._to_run[key] == 0) and key[0] in self._graphs and key not in self._ended:
                self._ended.add(key)
                self._left.pop(key, None)
                self._note_ready(key[0])
        for id in [chosen[row][0] for row in applied.finished.tolist()]:
            (row,), _ = self.sessions.results(np.array([self._keys[id]], np.int32))
            self.results[id] = split(row, emissions_of(self.model.specs))
            self._forget(id)
        errors = {chosen[row][0]: error for row, error in applied.failed.items()}
        self.errors |= errors
        for id in errors:
            self._forget(id)
        self.sessions.check_integrity()

    def _forget(self, id: int) -> None:
        self.sessions.close(np.array([self._keys.pop(id)], np.int32))
        del self._graphs[id]
        self._left = {key: left for key, left in self._left.items() if key[0] != id}


def run_all(model: CellModel, requests: Sequence[Request], **options: Any) -> list[Mapping[str, Emitted]]:
    """Results of all requests, which share batches at random."""
    loop = RandomLoop(model, **options)
    for id, request in enumerate(requests):
        loop.add(id, request)
    loop.run()
    assert loop.errors == {}
    return [loop.results[id] for id in range(len(requests))]
