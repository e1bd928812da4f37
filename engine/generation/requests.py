"""The requests of a generator: those that wait, and those that are active, with their rows and pages."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock.engine.generation.device import DecoderRows, SearchRequest, Seq2SeqDevice
from penstock.engine.generation.limits import GeneratorLimits
from penstock.engine.generation.pages import Int64Array, PagePool, PageTable
from penstock.engine.generation.selection import Choice, Hypotheses
from penstock.engine.generation_options import GenerationOptions
from penstock.engine.types import Int32Array

_NONE: Int64Array = np.empty(0, np.int64)


@dataclass(slots=True)
class GenerationRequest:
    """One request of a generator."""

    id: int
    source: Int32Array
    options: GenerationOptions
    num_pages: int  # that it needs at most
    hypotheses: Hypotheses | None  # None: the device chooses its tokens
    source_row: Int64Array = field(default_factory=lambda: _NONE)  # [1] while it is open
    rows: Int64Array = field(default_factory=lambda: _NONE)  # [num_beams] while it is open

    @property
    def is_searched(self) -> bool:
        """Whether the device chooses its tokens."""
        return self.hypotheses is None

    @property
    def hosted(self) -> Hypotheses:
        """The hypotheses of a request whose tokens the host chooses."""
        if self.hypotheses is None:
            raise RuntimeError(f"request {self.id} has no hypotheses on the host. This is a bug.")
        return self.hypotheses


class RequestTable:
    """Requests by id, and which rows and pages the open ones hold. It computes nothing.

    An open request reserves the pages that it needs at most, so that it always finds one.
    """

    def __init__(self, limits: GeneratorLimits) -> None:
        self.waiting: dict[int, GenerationRequest] = {}  # in the order in which they began to wait
        self.active: dict[int, GenerationRequest] = {}  # in the order in which they joined
        self._limits = limits
        self._pool = PagePool(limits.num_pages + 1)
        self._sources = PageTable(self._pool, limits.max_rows, limits.max_source_tokens, limits.page_size)
        self._targets = PageTable(self._pool, limits.max_rows, limits.max_new_tokens, limits.page_size)
        self._copies = _NONE, _NONE  # of pages, first to second, before the next step
        self._unclean: list[Int64Array] = []  # pages that may hold NaN, to clear before the device computes

    @property
    def num_free_pages(self) -> int:
        """Pages that no active request has reserved."""
        return self._limits.num_pages - sum([request.num_pages for request in self.active.values()])

    def named_waiting(self, ids: Iterable[int] | None) -> list[GenerationRequest]:
        """Waiting requests by their ids, each named once; all of them by default."""
        return _named(self.waiting, ids)

    def named_active(self, ids: Iterable[int] | None) -> list[GenerationRequest]:
        """Active requests by their ids, each named once; all of them by default."""
        return _named(self.active, ids)

    def fitting(self, requests: Iterable[GenerationRequest]) -> list[GenerationRequest]:
        """The first requests, as many as there are pages and rows for, and as the encoder takes at once."""
        fitting: list[GenerationRequest] = []
        num_pages = num_rows = num_tokens = 0
        num_free_pages = self.num_free_pages
        for request in requests:
            num_pages += request.num_pages
            num_rows += request.options.num_beams
            num_tokens += len(request.source)
            has_room = num_pages <= num_free_pages and num_rows <= self._targets.num_free_rows
            if not has_room or (fitting and num_tokens > self._limits.max_encode_tokens):
                break
            fitting.append(request)
        return fitting

    def open(self, requests: Sequence[GenerationRequest]) -> None:
        """Give requests their rows, with the pages of their sources, and of the targets that the device chooses."""
        source_rows = self._sources.open(len(requests))
        counts = np.array([request.options.num_beams for request in requests])
        rows = self._targets.open(int(counts.sum()))
        for request, row, last in zip(requests, source_rows[:, None], np.cumsum(counts).tolist(), strict=True):
            request.source_row, request.rows = row, rows[last - request.options.num_beams : last]
        self._sources.fill(source_rows, np.array([len(request.source) for request in requests]))
        longest = np.array([request.options.max_new_tokens * request.is_searched for request in requests])
        self._targets.fill(rows, np.repeat(longest, counts))

    def close(self, requests: Sequence[GenerationRequest], *, has_ended: bool) -> None:
        """Take rows and pages back. Those of requests that have not ended as they should may hold NaN."""
        opened = [request for request in requests if len(request.rows)]
        if not opened:
            return
        pages = np.concatenate([self._sources.close(_source_rows_of(opened)), self._targets.close(_rows_of(opened))])
        for request in opened:
            request.source_row = request.rows = _NONE
        if not has_ended:
            self._unclean.append(pages)
        if len(self._copies[1]):
            is_needed = ~np.isin(self._copies[1], pages)
            self._copies = self._copies[0][is_needed], self._copies[1][is_needed]

    def source_slots(self, requests: Sequence[GenerationRequest]) -> Int64Array:
        """Slots of all tokens of the sources of open requests, end to end."""
        return self._sources.slots(_source_rows_of(requests))

    def search_requests(self, requests: Sequence[GenerationRequest]) -> list[SearchRequest]:
        """Open requests whose tokens the device chooses."""
        of_sources, of_targets = self._sources.pages, self._targets.pages
        return [
            SearchRequest(
                request.id,
                request.options,
                of_targets[request.rows],
                of_sources[request.source_row[0]],
                len(request.source),
            )
            for request in requests
        ]

    def extend(self, requests: Sequence[GenerationRequest]) -> DecoderRows:
        """Give each row of active requests one position more."""
        rows = _rows_of(requests)
        slots = self._targets.extend(rows)
        sources = _source_rows_of(requests)
        return DecoderRows(
            tokens=np.array([row[-1] for request in requests for row in request.hosted.rows], np.int64),
            slots=slots,
            pages=self._targets.pages[rows],
            lengths=self._targets.lengths[rows],
            source_pages=self._sources.pages[sources],
            source_lengths=self._sources.lengths[sources],
            rows_per_source=np.array([len(request.rows) for request in requests]),
        )

    def retract(self, requests: Sequence[GenerationRequest]) -> None:
        """Take back what `extend` gave. What was written there is written again before it is read."""
        self._targets.retract(_rows_of(requests))

    def fork(self, requests: Sequence[GenerationRequest], choices: Sequence[Choice]) -> None:
        """Continue in the rows of each request what their parents hold."""
        forks = [(request.rows, choice.parents) for request, choice in zip(requests, choices, strict=True)]
        moved = [(own, own[parents]) for own, parents in forks if parents is not None]
        self._copies = (
            self._targets.reorder(*map(np.concatenate, zip(*moved, strict=True))) if moved else (_NONE, _NONE)
        )

    def clear_pages(self, device: Seq2SeqDevice) -> None:
        """Let the device clear pages that may hold NaN. Called before it computes."""
        if self._unclean:
            device.clear_pages(np.concatenate(self._unclean))
            self._unclean.clear()

    def copy_pages(self, device: Seq2SeqDevice) -> None:
        """Let the device make the copies that the last `fork` needs. Called before a step."""
        device.copy_pages(*self._copies)

    def check_integrity(self) -> None:
        """Raise unless all pages and rows belong to active requests or are free."""
        active = list(self.active.values())
        self._pool.check_integrity(self._sources, self._targets)
        self._sources.check_integrity([int(row) for request in active for row in request.source_row])
        self._targets.check_integrity([int(row) for request in active for row in request.rows])
        if not 0 <= self.num_free_pages <= self._pool.num_free:
            raise RuntimeError("more pages are in use than requests have reserved. This is a bug.")
        for request in (one for one in active if not one.is_searched):
            lengths = {len(row) - 1 for row in request.hosted.rows}
            if lengths != set(self._targets.lengths[request.rows].tolist()):
                raise RuntimeError(f"request {request.id} has keys of other steps than tokens. This is a bug.")


def _rows_of(requests: Sequence[GenerationRequest]) -> Int64Array:
    return np.concatenate([request.rows for request in requests])


def _source_rows_of(requests: Sequence[GenerationRequest]) -> Int64Array:
    return np.concatenate([request.source_row for request in requests])


def _named(requests: dict[int, GenerationRequest], ids: Iterable[int] | None) -> list[GenerationRequest]:
    if ids is None:
        return list(requests.values())
    ids = list(ids)
    if len(set(ids)) < len(ids) or not requests.keys() >= set(ids):
        raise ValueError(f"requests {ids} were named, of which one is unknown or named twice. This is a bug.")
    return [requests[id] for id in ids]
