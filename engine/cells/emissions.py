"""The emissions of a request as columns, one of each name, and as one flat array that the cache can store."""

from collections.abc import Mapping, Sequence

import numpy as np

from penstock.engine.cells.contract import CellSpec, StateSpec
from penstock.engine.cells.errors import InvalidCell
from penstock.engine.cells.graph import Unfolded
from penstock.engine.cells.sessions import Emitted, NodeOutput
from penstock.engine.types import Float32Array

_ITEM_BYTES = 4  # float32 or int32


class EmissionColumns:
    """The emissions that a model's cells have, by name. Those of one name have one width and type."""

    def __init__(self, specs: Sequence[CellSpec]) -> None:
        """Raises InvalidCell where two cells emit different values under one name."""
        self._specs = specs
        self._columns: dict[str, StateSpec] = {}
        for spec in specs:
            for emission in spec.emits:
                known = self._columns.setdefault(emission.name, emission)
                if (known.width, host_dtype(known)) != (emission.width, host_dtype(emission)):
                    raise InvalidCell(
                        f"cell {spec.name!r}: emission {emission.name!r} has another width or type than in another "
                        "cell. A reply has one column of each name; give it another name."
                    )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._columns)

    def max_bytes(self, graph: Unfolded) -> int:
        """Bytes of a request's emissions at most: where no chain stops early."""
        total = 0
        for cell, mine in graph.by_cell():
            width = sum([emission.width for emission in self._specs[cell].emits])
            total += width * int(graph.steps[mine].sum(dtype=np.int64))
        return _ITEM_BYTES * total

    def join(self, outputs: Sequence[NodeOutput]) -> Float32Array:
        """The number of rows of each column, and the columns end to end: the nodes' rows, in the nodes' order.

        Integers, and the numbers of rows, are there by their bits.
        """
        parts = [[output.values[name] for output in outputs if name in output.values] for name in self._columns]
        counts = np.array([sum(map(len, column)) for column in parts], np.int32)
        flat = [np.ascontiguousarray(part).view(np.float32).ravel() for column in parts for part in column]
        return np.concatenate([counts.view(np.float32), *flat])

    def split(self, joined: Float32Array) -> Mapping[str, Emitted]:
        """The columns of what `join` returned, each [rows, width]."""
        counts = joined[: len(self._columns)].view(np.int32).tolist()
        columns: dict[str, Emitted] = {}
        start = len(self._columns)
        for (name, emission), count in zip(self._columns.items(), counts, strict=True):
            end = start + count * emission.width
            columns[name] = joined[start:end].view(host_dtype(emission)).reshape(count, emission.width)
            start = end
        return columns


def host_dtype(emission: StateSpec) -> type[np.float32 | np.int32]:
    """The type of an emission's values when they have left the device."""
    return np.float32 if emission.dtype.is_floating_point else np.int32
