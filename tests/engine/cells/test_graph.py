"""Graphs of requests: their checks, and cell types that models share."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from penstock.engine.cells.contract import NO_NODE, Cell, CellSpec, StateSpec, Tensors
from penstock.engine.cells.errors import (
    CyclicGraph,
    DisconnectedGraph,
    EmptySequence,
    GraphTooLarge,
    InvalidCell,
    InvalidGraph,
    InvalidSequence,
    UnknownCell,
    WrongArity,
)
from penstock.engine.cells.graph import GraphBuilder, GraphLimits
from penstock.engine.cells.models.layers import weights_of
from penstock.engine.cells.models.lstm import lstm_classifier
from penstock.engine.cells.models.model import CellModel, RequestFields, take_tokens
from penstock.engine.errors import EngineError, InvalidBatch

H = StateSpec("h", 2)
TOKEN = StateSpec("token", 1, torch.int32)


def no_step(states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
    raise NotImplementedError


CHAIN = CellSpec("chain", (H,), ("token",), {"token": 10})
PAIR = CellSpec("pair", (H,), arity=2, max_steps=1)
LOOP = CellSpec("loop", (H,), ("token",), emits=(TOKEN,), feedback={"token": "token"}, stop={"token": 0})
OTHER = CellSpec("other", (H, StateSpec("c", 2)))
SPECS = (CHAIN, PAIR, LOOP, OTHER)


def model_of(unfold: Callable[[GraphBuilder], object]) -> CellModel:
    def into(request: RequestFields, graph: GraphBuilder) -> None:
        unfold(graph)

    return CellModel.of([Cell(spec, no_step) for spec in SPECS], into)


def cyclic(graph: GraphBuilder) -> None:
    graph.add("pair", reads=[1, NO_NODE])
    graph.add("pair", reads=[0, NO_NODE])


def listed_late(graph: GraphBuilder) -> None:
    graph.add("pair", reads=[1, 1])
    graph.add("chain", token=[1])


def disconnected(graph: GraphBuilder) -> None:
    graph.add("chain", token=[1])
    graph.add("chain", token=[1])


def reads_missing_state(graph: GraphBuilder) -> None:
    graph.add("other", reads=[graph.add("chain", token=[1])])


def endless(graph: GraphBuilder) -> None:
    while True:
        graph.add("chain", token=[1])


def deep(graph: GraphBuilder) -> None:
    node = graph.add("chain", token=[1])
    for _ in range(30):
        node = graph.add("chain", reads=[node], token=[1])


@pytest.mark.parametrize(
    ("unfold", "error", "message"),
    [
        (cyclic, CyclicGraph, "0 -> 1 -> 0|1 -> 0 -> 1"),
        (listed_late, InvalidGraph, "listed later"),
        (disconnected, DisconnectedGraph, "2 parts"),
        (reads_missing_state, WrongArity, "'c'"),
        (deep, GraphTooLarge, "31 nodes deep; at most 20"),
        (lambda graph: None, EmptySequence, "no node"),
        (lambda graph: graph.add("chain", token=[]), EmptySequence, "no step"),
        (lambda graph: graph.add("chain", token=[1] * 2, steps=0), EmptySequence, "no step"),
        (lambda graph: graph.add("chain", token=[1] * 101), GraphTooLarge, "101 steps; at most 100"),
        (lambda graph: graph.add("loop", token=[1], steps=10**6), GraphTooLarge, "at most 100"),
        (lambda graph: graph.add("loop", token=[1], steps=2**40), InvalidSequence, "cannot unfold"),
        (
            lambda graph: [graph.add("chain", token=[1]) for _ in range(51)],
            GraphTooLarge,
            "more than 50 nodes",
        ),
        (lambda graph: graph.add_each("chain", 51, token=[1] * 51), GraphTooLarge, "more than 50 nodes"),
        (lambda graph: graph.add_each("chain", 2, token=[1]), InvalidSequence, "1 values for 2 nodes"),
        (lambda graph: graph.add_each("pair", 1, reads=np.array([[0]])), WrongArity, "2 nodes, not 1"),
        (lambda graph: graph.add_each("pair", 1, reads=np.array([[0, 2**40]])), InvalidSequence, "cannot unfold"),
        (lambda graph: graph.add("unknown"), UnknownCell, "'unknown'; it has 'chain'"),
        (lambda graph: graph.add("pair", reads=[0]), WrongArity, "2 nodes, not 1"),
        (lambda graph: graph.add("chain", reads=[5], token=[1]), InvalidGraph, "does not exist"),
        (lambda graph: graph.add("chain", reads=[-2], token=[1]), InvalidGraph, "does not exist"),
        (lambda graph: graph.add("chain"), InvalidSequence, "needs the inputs"),
        (lambda graph: graph.add("pair", token=[1]), InvalidSequence, "needs the inputs"),
        (lambda graph: graph.add("chain", token=[1, 2], steps=3), InvalidSequence, "2 values of input 'token'"),
        (lambda graph: graph.add("loop", token=[1, 2], steps=2), InvalidSequence, "2 values of input 'token'"),
        (lambda graph: graph.add("chain", token=[10]), InvalidSequence, r"\[0, 10\)"),
        (lambda graph: graph.add("chain", token=[0.5]), InvalidSequence, "integers"),
        (lambda graph: 1 / 0, InvalidSequence, "ZeroDivisionError"),
    ],
)
def test_a_request_that_cannot_run_raises_an_error_that_says_why(
    unfold: Callable[[GraphBuilder], object], error: type[Exception], message: str
) -> None:
    limits = GraphLimits(max_nodes=50, max_depth=20, max_steps=100)
    with pytest.raises(error, match=message) as raised:
        model_of(unfold).unfold({}, limits)
    assert isinstance(raised.value, InvalidBatch)
    assert isinstance(raised.value, EngineError)


@pytest.mark.parametrize("steps", [2.5, "3", [2], 1.0])
def test_steps_that_are_no_integer_are_rejected(steps: Any) -> None:
    with pytest.raises(InvalidSequence, match="steps of a node must be integers"):
        model_of(lambda graph: graph.add("loop", token=[1], steps=steps)).unfold({})


@pytest.mark.parametrize("reads", [[0, 0.9], ["0", 0], np.array([0.2, 0.9])], ids=str)
def test_reads_that_are_no_integers_are_rejected(reads: Any) -> None:
    def one(graph: GraphBuilder) -> None:
        graph.add("chain", token=[1])
        graph.add("pair", reads=reads)

    def together(graph: GraphBuilder) -> None:
        graph.add("chain", token=[1])
        graph.add_each("pair", 1, reads=np.array([reads]))

    for unfold in (one, together):
        with pytest.raises(InvalidSequence, match="must be integers"):
            model_of(unfold).unfold({})


@pytest.mark.parametrize("read", [lambda request: request["tokens"], take_tokens], ids=["own code", "a model here"])
def test_a_long_string_among_the_tokens_takes_no_more_memory_than_the_request(
    read: Callable[[RequestFields], Any],
) -> None:
    """numpy would make each of them as wide: 40 MB."""
    request = {"tokens": ["x" * 10_000, *[1] * 1000]}
    model = model_of(lambda graph: graph.add("chain", token=read(request)))
    tracemalloc.start()
    try:
        with pytest.raises(InvalidSequence, match="flat list"):
            model.unfold(request)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_nodes_that_are_added_together_are_those_added_one_by_one() -> None:
    def together(graph: GraphBuilder) -> None:
        assert graph.add_each("chain", 3, token=[4, 5, 6]) == 0
        assert graph.add_each("pair", 2, reads=np.array([[0, 1], [3, 2]])) == 3
        assert graph.add("other", reads=[4]) == 5
        assert graph.add_each("pair", 0, reads=np.empty((0, 2), np.int64)) == 6

    def one_by_one(graph: GraphBuilder) -> None:
        for token in (4, 5, 6):
            graph.add("chain", token=[token])
        graph.add("pair", reads=[0, 1])
        graph.add("other", reads=[graph.add("pair", reads=[3, 2])])

    types = {spec.name: kind for kind, spec in enumerate(SPECS)}
    found = []
    for unfold in (together, one_by_one):
        builder = GraphBuilder(SPECS, types, GraphLimits())
        unfold(builder)
        found.append(builder.build().packed)
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (CellSpec("x", ()), "no state"),
        (CellSpec("x", (H, H)), "same name"),
        (CellSpec("x", (StateSpec("h", 0),)), "at least 1"),
        (CellSpec("x", (H,), arity=2), "max_steps=1"),
        (CellSpec("x", (H,), feedback={"token": "token"}, emits=(TOKEN,)), "inputs that it does not have"),
        (CellSpec("x", (H,), stop={"token": 1}), "emissions that it does not have"),
        (CellSpec("x", (H,), stop={"score": 1}, emits=(StateSpec("score", 1),)), "int32 of width 1"),
        (CellSpec("x", (H,), emits=(StateSpec("best", 1, torch.int64),)), "leaves as int32"),
        (CellSpec("x", (H,), emits=(StateSpec("best", 1, torch.uint32),)), "leaves as int32"),
        (CellSpec("x", (H,), ("token", "steps")), "another name than steps"),
        (CellSpec("x", (H,), ("self", "count")), "another name than count, self"),
        (CellSpec("chain", (H,)), "two cells are named"),
        (CellSpec("x", (StateSpec("h", 3),)), "share a pool"),
    ],
)
def test_a_declaration_that_contradicts_itself_is_rejected(spec: CellSpec, message: str) -> None:
    with pytest.raises(InvalidCell, match=message):
        CellModel.of([Cell(CHAIN, no_step), Cell(spec, no_step)], lambda request, graph: None)


def test_cells_of_equal_weights_and_shapes_are_one_type() -> None:
    torch.manual_seed(0)
    embedding, lstm = nn.Embedding(9, 4), nn.LSTM(4, 5)
    outputs = [nn.Linear(5, 3), nn.Linear(5, 3)]
    first, second = (lstm_classifier(weights_of(embedding=embedding, lstm=lstm, output=output)) for output in outputs)

    def renamed(cell: Cell, name: str) -> Cell:
        spec = cell.spec
        return Cell(CellSpec(name, spec.states, spec.inputs, spec.input_sizes, spec.emits, priority=spec.priority,
                             max_steps=spec.max_steps), cell.step)  # fmt: skip

    cells = [*first.cells, *(renamed(cell, f"{cell.spec.name} again") for cell in second.cells)]
    model = CellModel.of(cells, lambda request, graph: None)
    assert model.types == {"read": 0, "classify": 1, "read again": 0, "classify again": 2}
    assert [spec.name for spec in model.specs] == ["read", "classify", "classify again"]


class Scaled(nn.Module):
    """A step whose result depends on a private attribute, on a buffer that is not saved, and on a plain tensor."""

    def __init__(self, private: int = 1, unsaved: float = 1.0, plain: float = 1.0) -> None:
        super().__init__()
        self._private = private
        self.register_buffer("unsaved", torch.full((2,), unsaved), persistent=False)
        self.plain = torch.full((2,), plain)

    def forward(self, states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        return {"h": states["h"] * self._private * self.get_buffer("unsaved") * self.plain}, {}


@pytest.mark.parametrize("changed", [{"private": 2}, {"unsaved": 2.0}, {"plain": 2.0}])
def test_cells_that_differ_in_what_is_not_saved_are_several_types(changed: dict[str, float]) -> None:
    steps = [Scaled(), Scaled(), Scaled(**changed)]  # type: ignore[arg-type]  # of all three types
    cells = [Cell(CellSpec(f"cell{number}", (H,)), step) for number, step in enumerate(steps)]
    model = CellModel.of(cells, lambda request, graph: None)
    assert model.types == {"cell0": 0, "cell1": 0, "cell2": 1}
