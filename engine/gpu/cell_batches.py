"""A batch of cells as the device sees it: its description, copied there in one piece, and its results, copied back."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from penstock.engine.cells.contract import NO_SLOT, CellBatch, CellSpec, Int32Array, StateSpec
from penstock.engine.errors import InvalidBatch
from penstock.engine.types import Float32Array

_Slots = npt.NDArray[np.intp]
_SECTION = 64  # int32 values: sections begin at multiples of 256 bytes
_ROWS = (8, 16, 32, 64)  # then multiples of 64: a product's tiles have no fewer rows


def row_bucket(rows: int) -> int:
    """Rows of the graph for a batch of `rows` rows. Spare rows run no step."""
    return next((bucket for bucket in _ROWS if rows <= bucket), -(-rows // _ROWS[-1]) * _ROWS[-1])


def row_buckets(max_rows: int) -> list[int]:
    """All buckets of batches of up to `max_rows` rows."""
    return sorted({row_bucket(rows) for rows in range(1, max_rows + 1)})


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """Views of a batch's description and results, all int32 except float emissions. Spare rows have no steps."""

    quantum: int
    read: Tensor  # [rows, arity]
    write: Tensor  # [rows]
    steps: Tensor  # [rows]
    is_first: Tensor  # [rows]
    inputs: Mapping[str, Tensor]  # [quantum, rows]; undefined beyond a row's steps
    ran: Tensor  # [rows]: steps that ran
    stopped: Tensor  # [rows]
    emitted: Mapping[str, Tensor]  # [rows, quantum, width]


class CellLayout:
    """The sections of the descriptions and results of batches of one cell, number of rows and quantum."""

    def __init__(self, spec: CellSpec, rows: int, quantum: int) -> None:
        self.spec = spec
        self.rows = rows
        self.quantum = quantum
        inputs = [quantum * rows] * len(spec.inputs)
        self._described = _sections([rows * spec.arity, rows, rows, rows, *inputs])
        self._resulting = _sections([rows, rows, *(rows * quantum * emission.width for emission in spec.emits)])
        self.num_described = self._described[-1].stop  # int32 values
        self.num_results = self._resulting[-1].stop
        self.has_results = bool(spec.emits or spec.stop)  # otherwise every row runs the steps that it asks for

    def describe(self, batch: CellBatch | None, scratch: int, out: Int32Array) -> None:
        """Write a batch's description [num_described]; None: a batch of spare rows. scratch: the slot they write."""
        read, write, steps, is_first, *inputs = (out[section] for section in self._described)
        count = 0 if batch is None else len(batch.steps)
        write[count:] = scratch
        read[count * self.spec.arity :] = NO_SLOT
        steps[count:] = 0
        is_first[count:] = 1
        for values in inputs:
            values.reshape(self.quantum, self.rows)[:, count:] = 0
        if batch is None:
            return
        read[: count * self.spec.arity] = batch.read.reshape(-1)
        write[:count] = batch.write
        steps[:count] = batch.steps
        is_first[:count] = batch.is_first
        for name, values in zip(self.spec.inputs, inputs, strict=True):
            values.reshape(self.quantum, self.rows)[:, :count] = batch.inputs[name].T

    def views(self, description: Tensor, results: Tensor) -> DeviceBatch:
        """Views of int32 tensors at least as long as the description and the results."""
        spec, rows, quantum = self.spec, self.rows, self.quantum
        read, write, steps, is_first, *inputs = (description[section] for section in self._described)
        ran, stopped, *emitted = (results[section] for section in self._resulting)
        return DeviceBatch(
            quantum=quantum,
            read=read.view(rows, spec.arity),
            write=write,
            steps=steps,
            is_first=is_first,
            inputs={name: values.view(quantum, rows) for name, values in zip(spec.inputs, inputs, strict=True)},
            ran=ran,
            stopped=stopped,
            emitted={
                emission.name: (values if is_integer(emission) else values.view(torch.float32)).view(rows, quantum, -1)
                for emission, values in zip(spec.emits, emitted, strict=True)
            },
        )

    def results(
        self, values: Int32Array, count: int
    ) -> tuple[Int32Array, Int32Array, dict[str, Float32Array | Int32Array]]:
        """Copies of the steps that ran, the stop flags and the emissions of the first `count` rows."""
        ran, stopped, *emitted = (values[section] for section in self._resulting)
        by_name: dict[str, Float32Array | Int32Array] = {}
        for emission, section in zip(self.spec.emits, emitted, strict=True):
            rows = section.reshape(self.rows, self.quantum, emission.width)[:count].copy()
            by_name[emission.name] = rows if is_integer(emission) else rows.view(np.float32)
        return ran[:count].copy(), stopped[:count].copy(), by_name


class BatchCheck:
    """Raises InvalidBatch for what would read or write outside of the pool, or race."""

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._writer = np.full(num_slots, -1)  # row that writes a slot, within one call

    def __call__(self, batch: CellBatch, spec: CellSpec) -> None:
        rows, quantum = len(batch.steps), batch.quantum
        if not 1 <= rows <= spec.max_rows or not 1 <= quantum <= spec.max_steps:
            raise InvalidBatch(f"{rows} rows of {quantum} steps; {spec.name} has {spec.max_rows} of {spec.max_steps}")
        shapes = [batch.read.shape == (rows, spec.arity), batch.write.shape == batch.is_first.shape == (rows,)]
        shapes += [name in batch.inputs and batch.inputs[name].shape == (rows, quantum) for name in spec.inputs]
        if not all(shapes):
            raise InvalidBatch(f"the arrays of a batch of {spec.name} do not agree on {rows} rows of {quantum} steps")
        if batch.steps.min() < 1 or batch.steps.max() > quantum:
            raise InvalidBatch(f"a row of {spec.name} has steps outside of [1, {quantum}]")
        read, write = batch.read.ravel().astype(np.intp), batch.write.astype(np.intp)  # numpy's own type: it is faster
        if write.min() <= NO_SLOT or read.min() < NO_SLOT or max(write.max(), read.max()) >= self._num_slots:
            raise InvalidBatch(f"a row of {spec.name} reads or writes a slot outside of the pool of {self._num_slots}")
        self._check_writers(read, write, spec.arity)

    def _check_writers(self, read: _Slots, write: _Slots, arity: int) -> None:
        writer, own = self._writer, np.arange(len(write))
        writer[write] = own
        is_shared = not np.array_equal(writer[write], own)
        writers = writer[read]
        is_raced = ((writers >= 0) & (writers != np.repeat(own, arity))).any()
        writer[write] = -1
        if is_shared or is_raced:
            raise InvalidBatch("a row writes a slot that another row reads or writes")


def is_integer(emission: StateSpec) -> bool:
    """Whether an emission is int32 on the host; others are float32."""
    return not emission.dtype.is_floating_point


def _sections(sizes: list[int]) -> tuple[slice, ...]:
    starts = [0, *accumulate(-(-size // _SECTION) * _SECTION for size in sizes)]
    return tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=False))
