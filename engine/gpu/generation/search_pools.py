"""The requests of the search on a device: where each has its seat, and which steps are underway."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.engine.gpu.generation.search_state import SearchShape, Seats
from penstock.engine.types import Int32Array


class SearchKey(NamedTuple):
    """Facts that a captured graph fixes."""

    shape: SearchShape
    requests: int  # its seats, spare ones included
    quantum: int


@dataclass(slots=True)
class SearchPool:
    seats: Seats
    free: list[int]
    asked: Tensor  # int64: the seats of a batch, at a fixed address


class SearchKind(NamedTuple):
    """The shape and the first row of requests with equal options."""

    shape: SearchShape
    first: Int32Array  # see `Seats.first_row`


@dataclass(slots=True)
class OpenSearch:
    shape: SearchShape
    seat: int


@dataclass(frozen=True, slots=True)
class RunningSteps:
    """A quantum that the device works on."""

    shape: SearchShape
    ids: Sequence[int]
    results: Tensor  # int32 [at least as many as ids, ...] on the host, filled once `ended` has come
    ended: torch.cuda.Event | None
