"""The scheduler beside a model of its contract, over jobs of any shape that come, stop, expire and are cancelled."""

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from penstock.scheduler.cellular import CellGraph, CellRule
from tests.examples import examples
from tests.scheduler.cellular.model import Model, graph_of, tree_of

RULES = [CellRule("first", 3, max_steps=4), CellRule("second", 2, priority=1), CellRule("third", 4, 8, priority=1)]


@st.composite
def graphs(draw: st.DrawFn) -> CellGraph:
    """A tree, or nodes of which each depends on any of those before."""
    if draw(st.booleans()):
        return tree_of(draw(st.integers(1, 9)))
    nodes: list[tuple[int, int, Sequence[int]]] = []
    for index in range(draw(st.integers(1, 6))):
        parents = draw(st.sets(st.integers(0, index - 1), max_size=3)) if index else set[int]()
        nodes.append((draw(st.integers(0, 2)), draw(st.integers(1, 11)), sorted(parents)))
    return graph_of(nodes)


class Scheduling(RuleBasedStateMachine):
    """Jobs come at any time; tasks are planned and end in their order."""

    @initialize(max_tasks=st.integers(1, 3))
    def start(self, max_tasks: int) -> None:
        self.model = Model(RULES, max_tasks)

    @rule(
        graph=graphs(),
        slo_s=st.none() | st.integers(0, 9),
        bulk=st.booleans(),
        stops=st.dictionaries(st.integers(0, 5), st.integers(1, 11), max_size=2),
    )
    def add(self, graph: CellGraph, slo_s: int | None, bulk: bool, stops: dict[int, int]) -> None:
        possible = {node: at for node, at in stops.items() if node < len(graph.steps) and at <= graph.steps[node]}
        self.model.add(graph, deadline=None if slo_s is None else self.model.now + slo_s, bulk=bulk, stops=possible)

    @rule()
    def poll(self) -> None:
        self.model.poll()

    @precondition(lambda self: self.model.outstanding)
    @rule()
    def finish(self) -> None:
        self.model.finish()

    @rule(ids=st.lists(st.integers(0, 20), max_size=3))
    def cancel(self, ids: list[int]) -> None:
        self.model.cancel(*ids)

    @rule(seconds=st.integers(1, 3))
    def wait(self, seconds: int) -> None:
        self.model.now += seconds

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.model.drain()


TestScheduling = pytest.mark.slow(Scheduling.TestCase)
TestScheduling.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
