"""A batch of cells as the device sees it: its description, copied there in one piece, and its results, copied back."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from penstock.engine.cells.contract import CellBatch, CellSpec, Int32Array, StateSpec
from penstock.engine.cells.kernels.compiled import load_kernels
from penstock.engine.cells.node_table import NONE
from penstock.engine.errors import InvalidBatch
from penstock.engine.gpu.uploads import sections_of
from penstock.engine.types import Float32Array

NO_SIZES: Mapping[str, int] = {}


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

    def __init__(self, spec: CellSpec, rows: int, quantum: int, input_sizes: Mapping[str, int] = NO_SIZES) -> None:
        """input_sizes: see `Quantum.input_sizes`."""
        self.spec = spec
        self.rows = rows
        self.quantum = quantum
        inputs = [quantum * rows] * len(spec.inputs)
        self._described = sections_of([rows * spec.arity, rows, rows, rows, *inputs])
        self._begins = np.array([section.start for section in self._described], np.int64)
        self._inputs = [
            (name, input_sizes.get(name, NONE), section.start)
            for name, section in zip(spec.inputs, self._described[4:], strict=True)
        ]
        self._kernels = load_kernels()
        no_reads, no_inputs = np.empty((0, spec.arity), np.int32), np.empty((0, quantum), np.int32)
        no_rows, by_name = np.empty(0, np.int32), dict.fromkeys(spec.inputs, no_inputs)
        self._no_batch = CellBatch(spec.name, no_reads, no_rows, by_name, no_rows, np.empty(0, np.bool_), quantum)
        self._resulting = sections_of([rows, rows, *(rows * quantum * emission.width for emission in spec.emits)])
        self.num_described = self._described[-1].stop  # int32 values
        self.num_results = self._resulting[-1].stop
        self.has_results = bool(spec.emits or spec.stop)  # otherwise every row runs the steps that it asks for

    def describe(self, batch: CellBatch | None, scratch: int, out: Int32Array) -> None:
        """Write a batch's description [num_described]; None: a batch of spare rows. scratch: the slot they write.

        Raises InvalidBatch for an input outside of the cell's tables.
        """
        if batch is None:
            batch = self._no_batch
        self._kernels.describe_rows(
            batch.read, batch.write, batch.steps, batch.is_first, scratch, self._begins, self.rows, out
        )
        for name, size, begin in self._inputs:
            if not self._kernels.describe_input(batch.inputs[name], batch.steps, size, begin, self.rows, out):
                raise InvalidBatch(f"a value of input {name!r} of {batch.cell!r} is outside of its table of {size}.")

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


def is_integer(emission: StateSpec) -> bool:
    """Whether an emission is int32 on the host; others are float32."""
    return not emission.dtype.is_floating_point
