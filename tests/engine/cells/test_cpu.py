"""The engine on a CPU: batches at fault, rows at fault, and chains that stop."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from penstock.engine.cells.contract import NO_SLOT, Cell, CellBatch, CellSpec, StateSpec, Tensors
from penstock.engine.cells.cpu import CpuStepEngine
from penstock.engine.cells.errors import CellFailed, InvalidCell
from penstock.engine.errors import InvalidBatch

SUM = StateSpec("sum", 1)
RAISES, BECOMES_NAN = 66, 77
NO_STEP = {"value": 0}


def add(states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
    """Adds a value to the sum. Two values are bad."""
    value = inputs["value"][:, None].float()
    if (value == RAISES).any():
        raise ArithmeticError("a bad value")
    new = states["sum"] + torch.where(value == BECOMES_NAN, torch.nan, value)
    return {"sum": new}, {"sum": new}


def halve(states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
    """Emits half of what it reads, which it then reads, until 0."""
    half = inputs["value"][:, None] // 2
    return {"sum": states["sum"] + 1}, {"half": half}


ADD = Cell(CellSpec("add", (SUM,), ("value",), emits=(SUM,), max_rows=64, max_steps=4), add)
HALF = StateSpec("half", 1, torch.int32)
HALVE = Cell(
    CellSpec("halve", (SUM,), ("value",), emits=(HALF,), feedback={"value": "half"}, stop={"half": 0}, max_steps=4),
    halve,
)


def batch_of(values: list[list[int]], cell: str = "add", **changes: Any) -> CellBatch:
    """A row for each list, from zeros into slots 1, 2, ..."""
    rows, quantum = len(values), max(map(len, values))
    padded = np.array([row + [0] * (quantum - len(row)) for row in values], np.int32)
    return CellBatch(
        cell=cell,
        read=changes.get("read", np.zeros((rows, 1), np.int32)),
        write=changes.get("write", np.arange(1, rows + 1, dtype=np.int32)),
        inputs={"value": padded},
        steps=changes.get("steps", np.array([len(row) for row in values], np.int32)),
        is_first=changes.get("is_first", np.ones(rows, np.bool_)),
        quantum=quantum,
    )


def engine() -> CpuStepEngine:
    return CpuStepEngine((ADD, HALVE), 80)


def further(batch: CellBatch) -> CellBatch:
    """The same rows once more, from their own slots."""
    return replace(batch, read=batch.write[:, None], is_first=np.zeros_like(batch.is_first))


def test_rows_of_different_lengths_run_together_and_continue() -> None:
    batch = batch_of([[1, 2, 3], [10], [5, 5]])
    running = engine()
    output = running.start(batch).result()
    assert output.steps.tolist() == [3, 1, 2]
    assert output.emitted["sum"].dtype == np.float32
    assert [row[:steps, 0].tolist() for row, steps in zip(output.emitted["sum"], output.steps, strict=True)] == [
        [1, 3, 6],
        [10],
        [5, 10],
    ]
    assert not output.is_stopped.any()
    again = running.start(further(batch)).result()
    assert again.emitted["sum"][:, 0, 0].tolist() == [7, 20, 15]


def test_a_module_whose_weights_are_trainable_runs_and_keeps_no_gradient() -> None:
    """As torch makes modules. The second batch reads the states of the first."""
    torch.manual_seed(0)
    linear = torch.nn.Linear(1, 1)

    class Scale(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = linear

        def forward(self, states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
            new = self.linear(states["sum"] + inputs["value"][:, None])
            return {"sum": new}, {"sum": new}

    running = CpuStepEngine([Cell(ADD.spec, Scale())], 8)
    batch = batch_of([[1], [5]])
    first = running.start(batch).result().emitted["sum"][:, 0]
    second = running.start(further(batch)).result().emitted["sum"][:, 0]
    with torch.no_grad():
        expected = linear(torch.tensor([[1.0], [5.0]]))
        np.testing.assert_allclose(first, expected, rtol=1e-6)
        np.testing.assert_allclose(second, linear(expected + torch.tensor([[1.0], [5.0]])), rtol=1e-6)


def test_a_row_reads_zeros_where_it_has_no_predecessor_whatever_its_slot_held() -> None:
    running, batch = engine(), batch_of([[9, 9]])
    running.start(batch)
    assert running.start(batch).result().emitted["sum"][0, :, 0].tolist() == [9, 18]


def test_a_chain_feeds_itself_until_it_stops_and_then_does_nothing() -> None:
    batch = batch_of([[40, 0, 0], [2, 0, 0], [1, 0, 0]], "halve", steps=np.full(3, 3, np.int32))
    running = engine()
    first = running.start(batch).result()
    assert first.emitted["half"][:, :, 0].tolist() == [[20, 10, 5], [1, 0, 0], [0, 0, 0]]
    assert first.steps.tolist() == [3, 2, 1]
    assert first.is_stopped.tolist() == [False, True, True]
    second = running.start(further(batch)).result()
    assert second.emitted["half"][0, :, 0].tolist() == [2, 1, 0]
    assert second.steps.tolist() == [3, 0, 0]
    assert second.is_stopped.tolist() == [True, True, True]
    # A slot of a stopped chain starts another one, which reads it or not.
    assert running.start(batch).result().steps.tolist() == [3, 2, 1]
    assert running.start(replace(batch, read=batch.write[:, None])).result().steps.tolist() == [3, 2, 1]


@pytest.mark.parametrize("bad", [[0], [3], [0, 1], [0, 5, 6], list(range(7))])
def test_rows_that_raise_fail_alone(bad: list[int]) -> None:
    values = [[row + 1, row] for row in range(7)]
    for row in bad:
        values[row][1] = RAISES
    output = engine().start(batch_of(values)).result()
    assert sorted(output.failed) == bad
    for row in range(7):
        if row in bad:
            assert isinstance(output.failed[row], CellFailed)
            assert isinstance(output.failed[row].__cause__, ArithmeticError)
            assert (output.steps[row], output.is_stopped[row]) == (0, True)
        else:
            assert output.emitted["sum"][row, :, 0].tolist() == [row + 1, 2 * row + 1]


def test_rows_that_become_nan_fail_and_leave_nothing_behind() -> None:
    running = engine()
    batch = batch_of([[1, 2], [BECOMES_NAN, 2], [RAISES], [3]])
    output = running.start(batch).result()
    assert sorted(output.failed) == [1, 2]
    assert "computed NaN" in str(output.failed[1])
    assert output.emitted["sum"][0, :2, 0].tolist() == [1, 3]
    assert running.start(batch_of([[1]] * 4)).result().failed == {}


def test_a_value_beyond_a_rows_steps_is_not_read() -> None:
    calls = 0

    def counted(states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        nonlocal calls
        calls += 1
        return add(states, inputs)

    running = CpuStepEngine([replace(ADD, step=counted)], 8)
    calls = 0
    output = running.start(batch_of([[1, RAISES], [1, 2]], steps=np.array([1, 2], np.int32))).result()
    assert output.failed == {}
    assert calls == 2  # no row raised, so nothing ran again


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cell": "unknown"}, "no cell 'unknown'"),
        ({"quantum": 5}, "1 to 64 of 1 to 4"),
        ({"steps": np.array([1, 3], np.int32)}, r"\[1, 2\]"),
        ({"steps": np.array([1, 0], np.int32)}, r"\[1, 2\]"),
        ({"write": np.array([1, 1], np.int32)}, "another row"),
        ({"write": np.array([1, NO_SLOT], np.int32)}, "outside of the pool"),
        ({"write": np.array([1, 80], np.int32)}, "outside of the pool"),
        ({"read": np.array([[2], [0]], np.int32)}, "another row"),
        ({"read": np.array([[80], [0]], np.int32)}, "outside of the pool"),
        ({"read": np.array([[-1], [0]], np.int32)}, "negative"),
        ({"read": np.zeros((2, 2), np.int32)}, "do not agree"),
        ({"inputs": {}}, "do not agree"),
    ],
)
def test_a_batch_at_fault_is_rejected_and_writes_nothing(change: dict[str, Any], message: str) -> None:
    running = engine()
    good = batch_of([[1, 1], [2, 2]])
    with pytest.raises(InvalidBatch, match=message):
        running.start(replace(good, **change))
    assert running.start(further(good)).result().emitted["sum"][:, 1, 0].tolist() == [2, 4]


def wrong_width(states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
    return {"sum": states["sum"]}, {"sum": torch.zeros(2, 3)}


def forgets(states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
    return {}, {"sum": states["sum"]}


def unfinished(states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (wrong_width, r"emission 'sum' as \[rows, 1\].*returned \[2, 3\]"),
        (forgets, "state 'sum'"),
        (unfinished, "step of zeros"),
    ],
)
def test_a_cell_that_does_not_do_what_it_declares_is_rejected_at_load(step: Any, message: str) -> None:
    with pytest.raises(InvalidCell, match=message):
        CpuStepEngine([replace(ADD, step=step)], 8)


@pytest.mark.parametrize(
    "spoil",
    [lambda count: count.double(), lambda count: count[:, :0], lambda count: count.expand(-1, 2)],
    ids=["another type", "no column", "two columns"],
)
def test_a_step_that_returns_another_form_for_one_row_changes_no_state_of_the_others(spoil: Any) -> None:
    """The states before the one at fault are not written either."""
    count = StateSpec("count", 1)

    def step(states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        new = {"sum": states["sum"] + inputs["value"][:, None], "count": states["count"] + 1}
        if (inputs["value"] == RAISES).any():
            new["count"] = spoil(new["count"])
        return new, {"sum": new["sum"]}

    spec = CellSpec("pair", (SUM, count), ("value",), emits=(SUM,), max_rows=64, max_steps=4)
    cells = CpuStepEngine((Cell(spec, step),), 80)
    first = cells.start(batch_of([[1], [5]], "pair")).result()
    assert first.emitted["sum"][:, 0, 0].tolist() == [1, 5]
    carried: dict[str, Any] = {"read": np.array([[1], [2]], np.int32), "is_first": np.zeros(2, np.bool_)}
    second = cells.start(batch_of([[2], [RAISES]], "pair", **carried)).result()
    assert list(second.failed) == [1]
    assert isinstance(second.failed[1].__cause__, InvalidCell)
    third = cells.start(batch_of([[3]], "pair", read=carried["read"][:1], is_first=np.zeros(1, np.bool_))).result()
    assert third.emitted["sum"][:, 0, 0].tolist() == [6]


def test_an_error_that_may_pass_is_raised_and_nothing_changes() -> None:
    errors: list[Exception] = [MemoryError(), ConnectionError()]

    def step(states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        if (inputs["value"] == RAISES).any() and errors:
            raise errors.pop()
        return add(states, {"value": inputs["value"] % RAISES})

    cells = CpuStepEngine((replace(ADD, step=step),), 80)
    cells.start(batch_of([[1], [2]])).result()
    carried: dict[str, Any] = {"read": np.array([[1], [2]], np.int32), "is_first": np.zeros(2, np.bool_)}
    for error in (ConnectionError, MemoryError):
        with pytest.raises(error):
            cells.start(batch_of([[3], [RAISES]], **carried))
    done = cells.start(batch_of([[3], [4]], **carried)).result()
    assert done.emitted["sum"][:, 0, 0].tolist() == [4, 6]
