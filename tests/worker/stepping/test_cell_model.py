"""A served model made of cells: its probe is a step that can run, and a request reaches its runner as a graph."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from penstock.engine import load_served_cells
from penstock.engine.cells.contract import Cell, CellSpec, StateSpec, Tensors
from penstock.engine.cells.errors import InvalidCell
from penstock.engine.cells.graph import GraphBuilder
from penstock.engine.cells.models.model import CellModel
from penstock.engine.errors import UnsupportedCheckpoint
from penstock.producer.errors import InvalidRequest
from penstock.worker.stepping.cell_model import served_cells
from penstock.worker.stepping.step_model import StepModel

SUM = StateSpec("sum", 1)


def ratio(states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
    """Not a number for a step of zeros."""
    return {"sum": states["sum"] + 1}, {"sum": states["sum"] / inputs["value"][:, None]}


def count(states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
    new = states["sum"] + 1
    return {"sum": new}, {"sum": new}


def many(states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
    return states, {f"x{number}": torch.zeros_like(states["sum"]) for number in range(65)}


def model_of(*steps: Callable[[Tensors, Tensors], tuple[Tensors, Tensors]]) -> CellModel:
    specs = [CellSpec(step.__name__, (SUM,), ("value",), emits=(SUM,)) for step in steps]
    cells = [Cell(spec, step) for spec, step in zip(specs, steps, strict=True)]

    def unfold(request: Mapping[str, Any], graph: GraphBuilder) -> None:
        graph.add(steps[0].__name__, value=request["values"])

    return CellModel.of(cells, unfold)


def some_fail_on_zeros() -> CellModel:
    return model_of(ratio, count)


def all_fail_on_zeros() -> CellModel:
    return model_of(ratio)


def emits_many_names() -> CellModel:
    emits = tuple(StateSpec(f"x{number}", 1) for number in range(65))

    def unfold(request: Mapping[str, Any], graph: GraphBuilder) -> None:
        graph.add("many")

    return CellModel.of([Cell(CellSpec("many", (SUM,), emits=emits), many)], unfold)


def load(attribute: str) -> Any:
    return load_served_cells("m", cells=f"{__name__}:{attribute}", device="cpu")


async def test_the_probe_is_a_cell_that_runs_from_zeros() -> None:
    model = served_cells(load("some_fail_on_zeros"), "deadline")()
    assert isinstance(model, StepModel)
    assert model.read_fields is not None
    assert model.read_fields({"values": [1, 2]}).num_steps == 2
    with pytest.raises(InvalidRequest, match="KeyError"):
        model.read_fields({})
    assert model._probe.graph.cells.tolist() == [1]  # type: ignore[attr-defined]  # of the runner's own type
    assert await asyncio.wait_for(model.close(600.0), 60.0)


def test_a_model_without_a_cell_that_runs_from_zeros_is_rejected() -> None:
    with pytest.raises(InvalidCell, match=r"no cell can run a step of zeros.*NaN"):
        served_cells(load("all_fail_on_zeros"), "deadline")


def test_more_names_than_a_reply_holds_are_rejected() -> None:
    with pytest.raises(UnsupportedCheckpoint, match="emits 65 names; a reply holds at most 64"):
        served_cells(load("emits_many_names"), "deadline")
