"""The emissions of a request as columns, one of each name, and as one flat row that a cache can store.

Imports no torch: the process that makes replies reads rows before it has loaded a model.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from penstock.engine.cells.errors import InvalidCell
from penstock.engine.types import Emission, Float32Array, Int32Array

if TYPE_CHECKING:
    from penstock.engine.cells.contract import CellSpec, StateSpec
    from penstock.engine.cells.graph import Unfolded

Emitted = npt.NDArray[np.float32] | Int32Array

_ITEM_BYTES = 4  # float32 or int32


def host_dtype(emission: "StateSpec") -> type[np.float32 | np.int32]:
    """The type of an emission's values when they have left the device."""
    return np.float32 if emission.dtype.is_floating_point else np.int32


def no_values(emission: "StateSpec", rows: int, quantum: int) -> Emitted:
    """Zeros in place of what a batch emits [rows, quantum, width]."""
    return np.zeros((rows, quantum, emission.width), host_dtype(emission))  # type: ignore[return-value]  # of the two


def emissions_of(specs: Sequence["CellSpec"]) -> tuple[Emission, ...]:
    """The emissions of a model's cells. Raises InvalidCell where two differ under one name."""
    found: dict[str, Emission] = {}
    for spec in specs:
        for state in spec.emits:
            emission = Emission(state.name, state.width, np.dtype(host_dtype(state)).name)
            if found.setdefault(state.name, emission) != emission:
                raise InvalidCell(
                    f"cell {spec.name!r}: emission {state.name!r} has another width or type than in another cell. "
                    "A reply has one column of each name; give it another name."
                )
    return tuple(found.values())


def max_bytes(graph: "Unfolded", specs: Sequence["CellSpec"]) -> int:
    """Bytes of a request's emissions at most: where no chain stops early."""
    total = 0
    for cell, mine in graph.by_cell():
        width = sum([emission.width for emission in specs[cell].emits])
        total += width * int(graph.steps[mine].sum(dtype=np.int64))
    return _ITEM_BYTES * total


def split(row: Float32Array, emissions: Sequence[Emission]) -> Mapping[str, Emitted]:
    """The columns of a result, each [rows, width].

    A result is the number of rows of each column, and the columns end to end: the nodes' rows, in the nodes' order.
    Integers, and the numbers of rows, are there by their bits.
    """
    counts = row[: len(emissions)].view(np.int32).tolist()
    columns: dict[str, Emitted] = {}
    start = len(emissions)
    for (name, width, dtype), count in zip(emissions, counts, strict=True):
        end = start + count * width
        columns[name] = row[start:end].view(dtype).reshape(count, width)
        start = end
    return columns
