"""A model made of cells as a worker loads it."""

from pathlib import Path

import pytest
import torch

from penstock.engine.cells.contract import Cell, CellSpec, StateSpec, Tensors
from penstock.engine.cells.models.loading import save_cells
from penstock.engine.cells.models.model import CellModel
from penstock.engine.errors import CheckpointError, UnsupportedDevice
from penstock.engine.loading.cells import load_served_cells
from penstock.engine.types import Emission
from tests.engine.cells.test_loading import CASES
from tests.engine.helpers import needs_bfloat16

SUM = StateSpec("sum", 1, torch.float64)


def step(states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
    return states, {}


def silent() -> CellModel:
    return CellModel.of([Cell(CellSpec("one", (SUM,)), step)], lambda request, graph: None)


def torn() -> CellModel:
    cells = [Cell(CellSpec(f"of{width}", (SUM,), emits=(StateSpec("x", width),)), step) for width in (1, 2)]
    return CellModel.of(cells, lambda request, graph: None)


def wide() -> CellModel:
    state = StateSpec("wide", 1 << 20)
    return CellModel.of([Cell(CellSpec("one", (state,), emits=(SUM,)), step)], lambda request, graph: None)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    config, parts, _, _ = CASES["lm"]
    save_cells(tmp_path / "lm", config, **parts)
    return tmp_path / "lm"


def test_its_facts_are_those_of_its_cells(directory: Path) -> None:
    info = load_served_cells(str(directory), device="cpu").info
    assert (info.name, info.device, info.dtype, info.tasks) == ("lm", "cpu", "float32", frozenset({"sequence"}))
    assert info.emissions == (Emission("token", 1, "int32"), Emission("score", 1, "float32"))


def test_the_number_of_slots_follows_from_their_size(directory: Path) -> None:
    assert load_served_cells(str(directory), device="cpu").num_slots == 16_384
    assert load_served_cells(str(directory), device="cpu", num_slots=7).engine().num_slots == 8
    assert load_served_cells("m", cells=f"{__name__}:wide", device="cpu").num_slots == 1024


@needs_bfloat16
def test_types_are_those_asked_for(directory: Path) -> None:
    served = load_served_cells(str(directory), device="cpu", dtype="bfloat16")
    assert served.info.dtype == "bfloat16"
    assert {state.dtype for spec in served.model.specs for state in spec.states} == {torch.bfloat16, torch.float32}
    with pytest.raises(UnsupportedDevice, match="float16"):
        load_served_cells(str(directory), device="cpu", dtype="float16")


def test_a_type_that_no_cells_have_is_refused_on_a_gpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.engine.loading.cells.choose_device", lambda device: "cuda")
    with pytest.raises(UnsupportedDevice, match="'int8' is not available for cells on a GPU"):
        load_served_cells("not/read", dtype="int8")


@pytest.mark.parametrize(("attribute", "message"), [("silent", "no cell emits anything"), ("torn", "another width")])
def test_a_model_that_no_reply_could_hold_is_rejected(attribute: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_served_cells("m", cells=f"{__name__}:{attribute}", device="cpu")
