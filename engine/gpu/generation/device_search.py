"""The search for tokens on the device: quanta of decoder steps that the host only starts and reads."""

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.engine.generation.device import SearchRequest
from penstock.engine.generation.limits import GeneratorLimits
from penstock.engine.generation.pages import pages_of
from penstock.engine.generation.selection import Choice
from penstock.engine.generation_options import GenerationOptions
from penstock.engine.gpu.buckets import row_bucket
from penstock.engine.gpu.faults import DeviceFaults
from penstock.engine.gpu.generation.likely_tokens import MAX_CANDIDATES, BanTable
from penstock.engine.gpu.generation.search_quantum import (
    Predict,
    SearchQuantum,
    choice_of_beams,
    greedy_choice,
    num_results,
)
from penstock.engine.gpu.generation.search_state import MAX_EOS, SearchShape, Seats
from penstock.engine.gpu.graphs import Graphs
from penstock.engine.gpu.uploads import upload
from penstock.engine.types import Int32Array

_MOST_KINDS = 4096  # that are kept


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


class GpuSearch:
    """Implements `DeviceSearch` for greedy and beam search by rules that do not read earlier tokens.

    Each request has a seat in the state on the device. A quantum is one CUDA graph for each number of seats: it reads
    the seats' state, runs the steps, and writes it back. Beams are reordered by the table of their keys' slots, of
    which each step of each row has its own, so no key is copied.
    """

    def __init__(
        self,
        predict: Predict,
        limits: GeneratorLimits,
        vocabulary: int,
        logits: Tensor,
        faults: DeviceFaults,
    ) -> None:
        """logits: the memory that `predict` writes to."""
        self._limits = limits
        self._vocabulary = vocabulary
        self._faults = faults
        self._device = logits.device
        self._bans = BanTable(logits.shape[1], self._device)
        self._quantum = SearchQuantum(predict, vocabulary, self._bans, limits.page_size, logits)
        self._kind_of = lru_cache(maxsize=_MOST_KINDS)(self._kind)
        self._pools: dict[SearchShape, SearchPool] = {}
        self._open: dict[int, OpenSearch] = {}
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
        try:
            with self._faults.sorted():
                for request in requests:
                    by_shape.setdefault(self._kind_of(request.options).shape, []).append(request)
                for shape, group in by_shape.items():
                    self._open_some(self._pool(shape), shape, group)
        except BaseException:
            for id in self._open.keys() & {request.id for request in requests}:
                self.close(id)
            raise

    def _open_some(self, pool: SearchPool, shape: SearchShape, requests: Sequence[SearchRequest]) -> None:
        seats = pool.free[-len(requests) :]
        pool.seats.open(seats, requests, [self._kind_of(request.options).first for request in requests])
        del pool.free[-len(requests) :]
        self._open.update((request.id, OpenSearch(shape, seat)) for request, seat in zip(requests, seats, strict=True))

    @torch.inference_mode()
    def run(self, ids: Sequence[int], quantum: int) -> list[tuple[int, Choice]]:
        """See `DeviceSearch.run`. Waits for the device once."""
        with self._faults.sorted():
            return [one for running in self.launch(ids, quantum) for one in self._read(running)]

    @torch.inference_mode()
    def launch(self, ids: Sequence[int], quantum: int) -> list[RunningSteps]:
        """Queue the steps of `run`. Of a shape that raises, and of those after it, nothing runs."""
        by_shape: dict[SearchShape, list[int]] = {}
        for id in ids:
            by_shape.setdefault(self._open[id].shape, []).append(id)
        started: list[RunningSteps] = []
        for shape, group in by_shape.items():
            try:
                started.append(self._start(shape, group, quantum))
            except Exception:
                if not started:
                    raise
                break  # the next call raises it again
        return started

    def close(self, id: int) -> None:
        """See `DeviceSearch.close`."""
        found = self._open.pop(id)
        self._pools[found.shape].free.append(found.seat)

    @torch.inference_mode()
    def prepare(
        self, options: GenerationOptions, quanta: Sequence[int], max_requests: int, budget_s: float = math.inf
    ) -> None:
        """Capture the graphs of requests of a kind, up to so many at a time, in about `budget_s`. Called at load."""
        if self._graphs is None:
            return
        until = time.perf_counter() + budget_s
        shape = SearchShape.of(options)
        pool = self._pool(shape)
        most = min(max_requests, pool.seats.spare)
        for requests in sorted({shape.bucket(count) for count in range(1, most + 1)}, reverse=True):
            for quantum in quanta:
                if time.perf_counter() > until:
                    return
                pool.asked[:requests] = pool.seats.spare
                key = SearchKey(shape, requests, quantum)
                self._work(key)()  # loads the kernels: no module can be loaded during a capture
                self._graphs.capture(key, self._work(key))

    @torch.inference_mode()
    def capture_next(self) -> bool:
        """Capture a graph that two batches have missed, if any. Returns whether there was one."""
        if self._graphs is None or not self._graphs.is_due:
            return False
        with contextlib.suppress(RuntimeError):  # an error of the device appears again in the next call
            self._graphs.capture_next(self._work)
        return True

    def _kind(self, options: GenerationOptions) -> SearchKind:
        bans, shape = self._bans.row_of(options), SearchShape.of(options)
        if bans is None:
            raise RuntimeError("a search was opened that is not supported. This is a bug.")
        return SearchKind(shape, self._pool(shape).seats.first_row(options, bans))

    def _pool(self, shape: SearchShape) -> SearchPool:
        """The seats of a shape: as many as there are rows for."""
        if shape not in self._pools:
            limits = self._limits
            count = limits.max_rows // shape.beams
            columns = pages_of(limits.max_source_tokens, limits.page_size)
            seats = Seats(shape, count, limits.max_new_tokens, columns, limits.page_size, self._device)
            asked = torch.full((shape.bucket(count),), count, device=self._device)
            self._pools[shape] = SearchPool(seats, list(range(count)), asked)
        return self._pools[shape]

    def _start(self, shape: SearchShape, ids: Sequence[int], quantum: int) -> RunningSteps:
        pool, key = self._pools[shape], SearchKey(shape, shape.bucket(len(ids)), quantum)
        asked = np.full(key.requests, pool.seats.spare)
        asked[: len(ids)] = [self._open[id].seat for id in ids]
        (seats,) = upload(self._device, asked)
        pool.asked[: key.requests] = seats
        if self._graphs is None:
            return RunningSteps(shape, ids, self._work(key)(), None)
        self._graphs.capture_next(self._work)  # a device that is never idle needs its graphs the most
        columns = num_results(shape, quantum, self._limits.max_new_tokens)
        fetched = torch.empty(key.requests, columns, dtype=torch.int32, pin_memory=True)  # may fail: before the steps
        ended: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        fetched.copy_(self._graphs.run(key, self._work(key)), non_blocking=True)
        ended.record()
        return RunningSteps(shape, ids, fetched, ended)

    def _read(self, running: RunningSteps) -> list[tuple[int, Choice]]:
        """Wait for a quantum, and take its results."""
        if running.ended is not None:
            running.ended.synchronize()
        rows = running.results[: len(running.ids)].tolist()  # the rest is of spare seats
        choice_of = greedy_choice if running.shape.beams == 1 else choice_of_beams
        return [(id, choice_of(row)) for id, row in zip(running.ids, rows, strict=True)]

    def _work(self, key: SearchKey) -> Callable[[], Tensor]:
        pool = self._pool(key.shape)
        return partial(self._quantum, pool.seats, pool.asked[: key.requests], key.shape, key.quantum)


def most_rows(max_rows: int) -> int:
    """Rows of the largest batch, spare ones included, where `max_rows` are those of requests."""
    return row_bucket(max_rows) + MAX_CANDIDATES
