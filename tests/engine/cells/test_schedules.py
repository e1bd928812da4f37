"""A result depends neither on the rows that share a batch, nor on the quantum, nor on what used a slot before."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from penstock.engine.cells.contract import Cell, CellSpec, StateSpec, Tensors
from penstock.engine.cells.emissions import emissions_of
from penstock.engine.cells.graph import GraphBuilder
from penstock.engine.cells.models.model import CellModel
from tests.engine.cells.loop import RandomLoop
from tests.examples import examples

MODULUS = 8191
COUNT = StateSpec("count", 2, torch.int64)


def mixed(states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
    """A hash of all that a row has read, in integers: any mistake of order, slot or step changes it."""
    count = states["count"]
    if count.ndim == 3:
        count = (count * torch.tensor([3, 5])[None, :, None]).sum(1) + 1
    token = sum((values.long() for values in inputs.values()), torch.zeros(len(count), dtype=torch.int64))
    new = (count * 31 + token[:, None] * torch.tensor([1, 7]) + 17) % MODULUS
    return {"count": new}, {"hash": new[:, :1].int(), "pair": new.float()}


def looped(states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
    new, emitted = mixed(states, inputs)
    return new, {"next": (emitted["hash"] % 13).int()}


HASH, PAIR = StateSpec("hash", 1, torch.int32), StateSpec("pair", 2)
CELLS = (
    Cell(CellSpec("read", (COUNT,), ("token", "kind"), emits=(HASH, PAIR), max_rows=5, max_steps=4), mixed),
    Cell(CellSpec("join", (COUNT,), emits=(HASH, PAIR), arity=2, max_rows=5, max_steps=1), mixed),
    Cell(
        CellSpec(
            "loop",
            (COUNT,),
            ("token",),
            emits=(StateSpec("next", 1, torch.int32),),
            feedback={"token": "next"},
            stop={"next": 0},
            max_rows=5,
            max_steps=4,
        ),
        looped,
    ),
)


def unfold(request: Mapping[str, Any], graph: GraphBuilder) -> None:
    """Two chains, of which nodes that come later read at random, then a loop."""
    nodes = [graph.add("read", token=request["first"], kind=[request["kind"]])]
    for left, right in request["joins"]:
        reads = [nodes[left % len(nodes)], nodes[right % len(nodes)]]
        nodes.append(graph.add("join", reads=reads))
        nodes.append(graph.add("read", reads=[nodes[left % len(nodes)]], token=[left, right], kind=[1]))
    graph.add("loop", reads=[nodes[-1]], token=[2], steps=request["most"])


MODEL = CellModel.of(CELLS, unfold)
EMISSIONS = emissions_of(MODEL.specs)
REQUESTS = st.fixed_dictionaries(
    {
        "first": st.lists(st.integers(0, 50), min_size=1, max_size=12),
        "kind": st.integers(0, 3),
        "joins": st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=4),
        "most": st.integers(1, 30),
    }
)


def expected(request: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Emissions of all nodes, one request and one step at a time, without slots."""
    graph = MODEL.unfold(request)
    states: list[Tensor] = []
    results = []
    for node, cell in enumerate(graph.cells.tolist()):
        spec, step = CELLS[cell].spec, CELLS[cell].step
        before = [states[read] if read >= 0 else torch.zeros(2, dtype=torch.int64) for read in graph.reads[node]]
        state = before[0][None] if spec.arity == 1 else torch.stack(before)[None]
        emissions: dict[str, list[Tensor]] = {emission.name: [] for emission in spec.emits}
        fed = 2
        for index in range(graph.steps[node]):
            inputs = {}
            for name in spec.inputs:
                given = graph.inputs[name].values[slice(*graph.inputs[name].offsets[node : node + 2])]
                inputs[name] = torch.tensor([fed if spec.feedback else given[min(index, len(given) - 1)]])
            new, emitted = step({"count": state}, inputs)
            state = new["count"]
            for name, values in emitted.items():
                if name in emissions:
                    emissions[name].append(values[0])
            if "next" in emitted:
                fed = int(emitted["next"])
                if fed == 0:
                    break
        states.append(state[0])
        results.append({name: torch.stack(values).numpy() for name, values in emissions.items()})
    return {
        name: np.concatenate([values[name] for values in results if name in values] or [np.zeros((0, width))])
        for name, width, _ in EMISSIONS
    }


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(
    st.lists(REQUESTS, min_size=1, max_size=8),
    st.integers(0, 10_000),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([None, 1, 2, 4]),
    st.integers(12, 40),
)
def test_results_do_not_depend_on_the_schedule(
    requests: list[dict[str, Any]], seed: int, depth: int, quantum: int | None, num_slots: int
) -> None:
    loop = RandomLoop(MODEL, num_slots=num_slots, seed=seed, depth=depth, quantum=quantum)
    for id, request in enumerate(requests):
        loop.add(id, request)
    loop.run()
    for id, request in enumerate(requests):
        values = expected(request)
        assert loop.results[id].keys() == values.keys()
        for name, rows in values.items():
            np.testing.assert_array_equal(loop.results[id][name], rows)
