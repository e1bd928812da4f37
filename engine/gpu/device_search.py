"""The search for tokens on the device: quanta of decoder steps that the host only starts and reads."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.engine.generation.device import SearchRequest
from penstock.engine.generation.limits import GeneratorLimits
from penstock.engine.generation.options import GenerationOptions
from penstock.engine.generation.pages import pages_of
from penstock.engine.generation.selection import Choice
from penstock.engine.gpu.bans import BanTable
from penstock.engine.gpu.cached_attention import CacheLines
from penstock.engine.gpu.cell_batches import row_bucket
from penstock.engine.gpu.graphs import Graphs
from penstock.engine.gpu.likely_tokens import MAX_CANDIDATES, likely_tokens
from penstock.engine.gpu.search_results import choice_of_beams, greedy_choice
from penstock.engine.gpu.search_state import (
    MAX_EOS,
    RUNNING,
    SearchShape,
    SearchState,
    SearchTerms,
    Seats,
)
from penstock.engine.gpu.search_steps import Candidates, banned_rows, take_beams, take_greedy
from penstock.engine.gpu.seq2seq_ops import TargetRows
from penstock.engine.gpu.uploads import upload

Predict = Callable[[TargetRows], Tensor]  # logits [R, ...], overwritten by the next call


class SearchKey(NamedTuple):
    """Facts that a captured graph fixes."""

    shape: SearchShape
    requests: int  # its seats, spare ones included
    quantum: int


@dataclass(slots=True)
class _Pool:
    seats: Seats
    free: list[int]
    asked: Tensor  # int64: the seats of a batch, at a fixed address


@dataclass(slots=True)
class _Open:
    shape: SearchShape
    seat: int


@dataclass(frozen=True, slots=True)
class RunningSteps:
    """A quantum that the device works on."""

    requests: Mapping[int, _Open]
    results: Tensor  # int32 [at least as many as requests, ...] on the host, filled once `ended` has come
    ended: torch.cuda.Event | None


class GpuSearch:
    """Implements `DeviceSearch` for greedy and beam search by rules that do not read earlier tokens.

    Each request has a seat in the state on the device. A quantum is one CUDA graph for each number of seats: it reads
    the seats' state, runs the steps, and writes it back. Beams are reordered by the table of their keys' slots, of
    which each step of each row has its own, so no key is copied.
    """

    def __init__(
        self, predict: Predict, limits: GeneratorLimits, vocabulary: int, logits: Tensor, *, works_ahead: bool
    ) -> None:
        """logits: the memory that `predict` writes to. works_ahead: see `DeviceSearch.run`."""
        self._predict = predict
        self._limits = limits
        self._vocabulary = vocabulary
        self.works_ahead = works_ahead
        self._underway: list[RunningSteps] = []
        self._device = logits.device
        self._bans = BanTable(logits.shape[1], self._device)
        self._pools: dict[SearchShape, _Pool] = {}
        self._open: dict[int, _Open] = {}
        self._graphs: Graphs[SearchKey] | None = Graphs(self._device) if self._device.type == "cuda" else None

    def supports(self, options: GenerationOptions) -> bool:
        """See `DeviceSearch.supports`."""
        return (
            not options.do_sample
            and options.repetition_penalty == 1
            and options.no_repeat_ngram_size == 0
            and not options.begin_suppress_tokens
            and len(options.eos_token_ids) <= MAX_EOS
            and len(options.forced_eos_token_ids) <= 1
            and {options.forced_bos_token_id, *options.forced_eos_token_ids}.isdisjoint(options.suppress_tokens)
            and SearchShape.of(options).candidates <= min(MAX_CANDIDATES, self._vocabulary)
            and self._bans.row_of(options) is not None
        )

    @torch.inference_mode()
    def open(self, requests: Sequence[SearchRequest]) -> None:
        """See `DeviceSearch.open`."""
        by_shape: dict[SearchShape, list[SearchRequest]] = {}
        for request in requests:
            by_shape.setdefault(SearchShape.of(request.options), []).append(request)
        pools = {shape: self._pool(shape) for shape in by_shape}  # allocates first, which is what may fail
        for shape, group in by_shape.items():
            pool = pools[shape]
            seats = pool.free[-len(group) :]
            pool.seats.open(seats, group, [self._row_of_bans(request.options) for request in group])
            del pool.free[-len(group) :]
            self._open.update((request.id, _Open(shape, seat)) for request, seat in zip(group, seats, strict=True))

    @torch.inference_mode()
    def run(self, ids: Sequence[int], quantum: int) -> list[tuple[int, Choice]]:
        """See `DeviceSearch.run`. Waits for the device once."""
        found = self.launch(ids, quantum)
        if self.works_ahead:
            found, self._underway = self._underway, found
        return [one for running in found for one in self._read(running)]

    @torch.inference_mode()
    def launch(self, ids: Sequence[int], quantum: int) -> "list[RunningSteps]":
        """Queue the steps of `run`."""
        by_shape: dict[SearchShape, list[int]] = {}
        for id in ids:
            by_shape.setdefault(self._open[id].shape, []).append(id)
        return [self._start(shape, group, quantum) for shape, group in by_shape.items()]

    def close(self, id: int) -> None:
        """See `DeviceSearch.close`."""
        found = self._open.pop(id)
        self._pools[found.shape].free.append(found.seat)

    @torch.inference_mode()
    def prepare(self, options: GenerationOptions, quanta: Sequence[int], max_requests: int) -> None:
        """Capture the graphs of requests of a kind, up to so many at a time. Called at load."""
        if self._graphs is None:
            return
        shape = SearchShape.of(options)
        pool = self._pool(shape)
        for quantum in quanta:
            most = min(max_requests, pool.seats.spare)
            for requests in sorted({shape.bucket(count) for count in range(1, most + 1)}, reverse=True):
                pool.asked[:requests] = pool.seats.spare
                key = SearchKey(shape, requests, quantum)
                self._work(key)()  # loads the kernels: no module can be loaded during a capture
                self._graphs.capture(key, self._work(key))

    def _row_of_bans(self, options: GenerationOptions) -> int:
        row = self._bans.row_of(options)
        if row is None:
            raise RuntimeError("a search was opened that is not supported. This is a bug.")
        return row

    def _pool(self, shape: SearchShape) -> _Pool:
        """The seats of a shape: as many as there are rows for."""
        if shape not in self._pools:
            limits = self._limits
            count = limits.max_rows // shape.beams
            columns = pages_of(limits.max_source_tokens, limits.page_size)
            seats = Seats(shape, count, limits.max_new_tokens, columns, self._device)
            asked = torch.full((shape.bucket(count),), count, device=self._device)
            self._pools[shape] = _Pool(seats, list(range(count)), asked)
        return self._pools[shape]

    def _start(self, shape: SearchShape, ids: Sequence[int], quantum: int) -> "RunningSteps":
        pool, key = self._pools[shape], SearchKey(shape, shape.bucket(len(ids)), quantum)
        requests = {id: self._open[id] for id in ids}
        asked = np.full(key.requests, pool.seats.spare)
        asked[: len(ids)] = [request.seat for request in requests.values()]
        (seats,) = upload(self._device, asked)
        pool.asked[: key.requests] = seats
        if self._graphs is None:
            return RunningSteps(requests, self._work(key)(), None)
        self._graphs.capture_next(self._work)
        results = self._graphs.run(key, self._work(key))
        fetched = torch.empty(results.shape, dtype=results.dtype, pin_memory=True)
        fetched.copy_(results, non_blocking=True)
        ended: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        ended.record()
        return RunningSteps(requests, fetched, ended)

    def _read(self, running: "RunningSteps") -> list[tuple[int, Choice]]:
        """What steps have found, of the requests that are still open."""
        if running.ended is not None:
            running.ended.synchronize()
        rows = zip(running.requests.items(), running.results.numpy(), strict=False)  # the rest is of spare seats
        return [
            (id, greedy_choice(row) if request.shape.beams == 1 else choice_of_beams(row))
            for (id, request), row in rows
            if self._open.get(id) is request
        ]

    def _work(self, key: SearchKey) -> Callable[[], Tensor]:
        """A quantum. Depends on its requests only through memory at fixed addresses."""
        pool, shape = self._pool(key.shape), key.shape
        seats = pool.asked[: key.requests]

        def work() -> Tensor:
            terms, state = pool.seats.read(seats)
            added = []
            for _ in range(key.quantum):
                found = self._candidates(shape, terms, state)
                if shape.beams > 1:
                    state = take_beams(terms, state, found, shape.candidates)
                else:
                    state, tokens = take_greedy(terms, state, found)
                    added.append(tokens)
            pool.seats.write(seats, state)
            if shape.beams > 1:
                return torch.cat([state.status[:, None], state.ended_lengths[:, :1], state.ended[:, 0]], 1)
            return torch.stack([state.status, *added], 1)

        return work

    def _candidates(self, shape: SearchShape, terms: SearchTerms, state: SearchState) -> Candidates:
        """Run the decoder for one step."""
        is_running = state.status == RUNNING
        positions = state.length.masked_fill(~is_running, 0)
        lengths = (state.length + 1).masked_fill(~is_running, 0)
        of_sources = terms.source_length.masked_fill(~is_running, 0)

        def by_row(values: Tensor) -> Tensor:
            return values[:, None].expand(-1, shape.beams).reshape(-1)

        past = CacheLines(state.slots.flatten(0, 1), by_row(lengths), None, 1)
        lines = torch.arange(state.last.numel(), dtype=torch.int32, device=self._device) // shape.beams
        sources = CacheLines(terms.source_pages, of_sources, lines, self._limits.page_size)
        logits = self._predict(TargetRows(state.last.flatten(), by_row(positions), past, sources))
        bans = by_row(banned_rows(terms, state))
        values, tokens = likely_tokens(
            logits, self._vocabulary, self._bans.bits, bans, by_row(terms.renormalize), shape.candidates
        )
        of_request = len(state.status), shape.beams, -1
        return Candidates(values.view(of_request), tokens.view(of_request))


def most_rows(max_rows: int) -> int:
    """Rows of the largest batch, spare ones included, where `max_rows` are those of requests."""
    return row_bucket(max_rows) + MAX_CANDIDATES
