"""Sequences of one request as columns, from the preparation to their results."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

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

    def part(self, places: Sequence[int]) -> "SequenceBlock":
        """Some of its sequences, at least one, in the order of their places in the block."""
        if _is_run(places):
            begin, end = places[0], places[-1] + 1
            if end - begin == len(self.indices):
                return self
            bounds = list(accumulate(self.lengths[:end], initial=0))
            tokens = slice(bounds[begin], bounds[end])
            indices, lengths, keys = self.indices[begin:end], self.lengths[begin:end], self.keys[begin:end]
            types = None if self.token_type_ids is None else self.token_type_ids[tokens]
            return self._with(indices, self.token_ids[tokens], lengths, types, keys)
        bounds = list(accumulate(self.lengths, initial=0))
        spans = [slice(bounds[place], bounds[place + 1]) for place in places]
        types = None
        if self.token_type_ids is not None:
            types = np.concatenate([self.token_type_ids[span] for span in spans])
        return self._with(
            [self.indices[place] for place in places],
            np.concatenate([self.token_ids[span] for span in spans]),
            [self.lengths[place] for place in places],
            types,
            [self.keys[place] for place in places],
        )

    def settle(self, rows: Sequence[Float32Array]) -> bool:
        """See `PendingRequest.settle`."""
        return self.request.settle(self.indices, rows)

    def _with(
        self,
        indices: Sequence[int],
        token_ids: Int32Array | Uint32Array,
        lengths: Sequence[int],
        types: Int32Array | None,
        keys: Sequence[bytes],
    ) -> "SequenceBlock":
        rest = self.options, keys, self.is_stored, self.work
        return SequenceBlock(self.request, indices, token_ids, lengths, types, *rest)


SequenceResults = Sequence[tuple[SequenceBlock, Sequence[Float32Array]]]  # rows, from the cache or from a batch


def _is_run(places: Sequence[int]) -> bool:
    """Whether places follow one another."""
    first, count = places[0], len(places)
    return places[-1] - first == count - 1 and (count <= 2 or list(places) == list(range(first, first + count)))
