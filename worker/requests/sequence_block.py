"""Sequences of one request as columns, from the preparation to their results."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.engine.types import Float32Array, Int32Array, TaskOptions
from penstock.producer.wire.messages import Uint32Array
from penstock.worker.requests.request import PendingRequest
from penstock.worker.requests.sequence_work import SequenceWork


@dataclass(slots=True, eq=False)
class SequenceBlock:
    """Sequences of one request that wait for their results, N of them with T tokens.

    Most stages handle a block at the cost of one sequence. It is cut only where its parts differ: some are in the
    cache, equal to others that run, or in another batch.
    """

    request: PendingRequest
    indices: Sequence[int]  # [N] their places in request.results
    token_ids: Int32Array | Uint32Array  # [T], end to end
    lengths: Sequence[int]  # [N] tokens of each
    token_type_ids: Int32Array | None  # [T]; None: all zero
    options: TaskOptions
    keys: Sequence[bytes]  # [N] for the cache and single flight: equal keys mean equal results
    is_stored: bool = True  # whether the cache keeps results; false: sampling without a seed, which has its own key
    work: SequenceWork | None = None  # of a model made of cells, whose blocks have one sequence
    _bounds: list[int] | None = field(default=None, init=False)  # [N+1] where each begins, once it has been cut

    def part(self, places: Sequence[int]) -> "SequenceBlock":
        """Some of its sequences, at least one, in the order of their places in the block."""
        count = len(places)
        if count == len(self.keys) and _is_run(places):
            return self
        cut = slice(places[0], places[-1] + 1) if _is_run(places) else places
        return SequenceBlock(
            self.request,
            _chosen(self.indices, cut),
            self._tokens(self.token_ids, cut),
            _chosen(self.lengths, cut),
            None if self.token_type_ids is None else self._tokens(self.token_type_ids, cut),
            self.options,
            _chosen(self.keys, cut),
            self.is_stored,
            self.work,
        )

    def settle(self, rows: Sequence[Float32Array]) -> bool:
        """See `PendingRequest.settle`."""
        return self.request.settle(self.indices, rows)

    def _tokens(self, column: npt.NDArray[Any], cut: slice | Sequence[int]) -> npt.NDArray[Any]:
        """A column's values of some sequences."""
        if self._bounds is None:
            self._bounds = list(accumulate(self.lengths, initial=0))
        bounds = self._bounds
        if isinstance(cut, slice):
            return column[bounds[cut.start] : bounds[cut.stop]]
        return np.concatenate([column[bounds[place] : bounds[place + 1]] for place in cut])


SequenceResults = Sequence[tuple[SequenceBlock, Sequence[Float32Array]]]  # rows, from the cache or from a batch


def _chosen(column: Sequence[Any], cut: slice | Sequence[int]) -> Sequence[Any]:
    return column[cut] if isinstance(cut, slice) else [column[place] for place in cut]


def _is_run(places: Sequence[int]) -> bool:
    """Whether places follow one another."""
    first, count = places[0], len(places)
    return places[-1] - first == count - 1 and (count <= 2 or list(places) == list(range(first, first + count)))
