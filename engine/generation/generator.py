"""A generator: requests join and leave a batch of decoder steps at every step.

It computes nothing before it is told to, has no thread and no clock, and its results depend on each request alone, up
to the rounding of matrix products. As cells (`engine.cells.contract`) a request is two nodes:

- `encode`: a node of one step. It writes the keys and values of cross-attention to pages. `Generator.encode` runs a
  batch of such nodes. Those for which no pages or rows are free stay as they are, and are given again later.
- `decode`: a chain of at most max_new_tokens steps, of higher priority. Its state is paged: one row of pages for each
  beam, and the pages of `encode`. Each step takes the token that the step before has emitted (feedback), and the chain
  stops with an end token. `Generator.decode` runs a batch of chains for a quantum of steps. Chains that stop within
  the quantum leave at once, so no step is computed for nothing.

A scheduler's task becomes `encode(ids)` or `decode(ids, quantum)`, with one id for all beams of a request. Without a
scheduler, `step()` is one step of all.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from penstock.engine.errors import GeneratorFull
from penstock.engine.generation.cpu import CpuSeq2Seq, DecoderRows
from penstock.engine.generation.limits import GeneratorLimits
from penstock.engine.generation.options import GenerationOptions
from penstock.engine.generation.pages import Int64Array, PagePool, PageTable
from penstock.engine.generation.selection import Choice, Hypotheses, choose
from penstock.engine.generation.weights import Seq2SeqWeights
from penstock.engine.types import Int32Array

_NONE: Int64Array = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Progress:
    """New tokens of one request, the end token included."""

    id: int
    tokens: tuple[int, ...]  # of beam search: none before the end, then all
    finish: Literal["stop", "length", "invalid"] | None = None  # invalid: NaN, or no token left


@dataclass(slots=True)
class _Request:
    id: int
    source: Int32Array
    hypotheses: Hypotheses
    num_pages: int  # that it needs at most
    source_row: Int64Array = field(default_factory=lambda: _NONE)  # [1] once it has joined
    rows: Int64Array = field(default_factory=lambda: _NONE)  # [num_beams] once it has joined


class Generator:
    """Encoder-decoder generation with a paged cache. Called by one thread; equal calls give equal results.

    A request waits after `start`, joins with `encode`, and leaves when `decode` reports its finish or with `cancel`.
    Joining reserves the pages that the request needs at most, so a request that has joined always finishes.
    A call that raises changes nothing that a later one reads, and leaves pages and rows as they were.
    """

    def __init__(self, weights: Seq2SeqWeights, limits: GeneratorLimits, threads: int = 1) -> None:
        """threads: of the matrix products; each call sets the calling thread's torch thread count to it."""
        self._weights = weights
        self._limits = limits
        self._device = CpuSeq2Seq(weights, limits.num_pages + 1, limits.page_size, threads)
        self._pool = PagePool(limits.num_pages + 1)
        self._sources = PageTable(self._pool, limits.max_rows, limits.max_source_tokens, limits.page_size)
        self._targets = PageTable(self._pool, limits.max_rows, limits.max_new_tokens, limits.page_size)
        self._waiting: dict[int, _Request] = {}  # by id, in the order of `start`
        self._active: dict[int, _Request] = {}  # by id, in the order of `encode`
        self._copies = _NONE, _NONE  # of pages, first to second, before the next step
        self._unclean: list[Int64Array] = []  # pages that may hold NaN, to clear before the device computes

    @property
    def waiting(self) -> tuple[int, ...]:
        """Requests that have not joined, in the order in which they began to wait."""
        return tuple(self._waiting)

    @property
    def active(self) -> tuple[int, ...]:
        """Requests that have joined and not finished, in the order in which they joined."""
        return tuple(self._active)

    @property
    def num_free_pages(self) -> int:
        """Pages that no request has reserved."""
        return self._limits.num_pages - sum(request.num_pages for request in self._active.values())

    def start(self, id: int, input_ids: Int32Array, options: GenerationOptions, seed: int = 0) -> None:
        """Let a request wait. `id` is none that is waiting or active. seed: of sampling.

        Raises InvalidSource, InvalidOption, and GeneratorFull where as many wait as may. Nothing is changed then.
        """
        if id in self._waiting or id in self._active:
            raise ValueError(f"request {id} was started twice. This is a bug.")
        self._limits.require_source(input_ids, self._weights)
        self._limits.require_options(options, self._weights)
        num_pages = self._limits.pages_of(len(input_ids), options)
        self._limits.require_pages(num_pages)
        if len(self._waiting) >= self._limits.max_waiting:
            raise GeneratorFull(f"{len(self._waiting)} requests wait, which is the limit. Try again later.")
        self._waiting[id] = _Request(id, input_ids, Hypotheses(options, seed), num_pages)

    def encode(self, ids: Iterable[int] | None = None) -> list[int]:
        """Run the encoder for waiting requests, which then join. Returns those that did, in order.

        ids: in order of precedence; all that wait by default. The first for which no room is free, and those after
        it, keep waiting, so that large requests are not overtaken forever. Where it raises, all keep waiting.
        """
        joining = self._fitting(_named(self._waiting, self.waiting if ids is None else ids))
        try:
            for request in joining:
                self._open(request)
            self._run_encoder(joining)
        except BaseException:
            for request in joining:
                self._close(request, has_ended=False)
            raise
        self._active.update((request.id, self._waiting.pop(request.id)) for request in joining)
        return [request.id for request in joining]

    def decode(self, ids: Iterable[int] | None = None, quantum: int = 1) -> list[Progress]:
        """Run up to `quantum` decoder steps of active requests; all of them by default.

        Returns what is new, in the order of `ids`: requests with new tokens or a finish. A step that raises changes
        nothing. The steps of the quantum before it are returned, and the error is raised by the next call.
        """
        chosen = _named(self._active, self.active if ids is None else ids)
        tokens: dict[int, tuple[int, ...]] = {request.id: () for request in chosen}
        finishes: dict[int, Literal["stop", "length", "invalid"]] = {}
        for index in range(quantum):
            running = [request for request in chosen if request.id not in finishes]
            if not running:
                break
            try:
                choices = self._step(running)
            except Exception:
                if index == 0:
                    raise
                break
            for request, choice in zip(running, choices, strict=True):
                tokens[request.id] += choice.tokens
                if choice.is_finished:
                    finishes[request.id] = _finish(request, choice)
                    self._leave(request, has_ended=not choice.is_invalid)
        progress = (Progress(id, new, finishes.get(id)) for id, new in tokens.items())
        return [one for one in progress if one.tokens or one.finish]

    def step(self, quantum: int = 1) -> list[Progress]:
        """Let requests join for which there is room, then run up to `quantum` decoder steps of all."""
        self.encode()
        return self.decode(quantum=quantum)

    def cancel(self, id: int) -> bool:
        """Let a request leave, with its pages. Returns whether it was waiting or active."""
        if id in self._active:
            self._leave(self._active[id], has_ended=False)
            return True
        return self._waiting.pop(id, None) is not None

    def check_integrity(self) -> None:
        """Raise unless all pages and rows belong to active requests or are free. Called by tests, and when idle."""
        active = list(self._active.values())
        self._pool.check_integrity(self._sources, self._targets)
        self._sources.check_integrity([int(row) for request in active for row in request.source_row])
        self._targets.check_integrity([int(row) for request in active for row in request.rows])
        if not 0 <= self.num_free_pages <= self._pool.num_free:
            raise RuntimeError("more pages are in use than requests have reserved. This is a bug.")
        for request in active:
            lengths = {len(row) - 1 for row in request.hypotheses.rows}
            if lengths != set(self._targets.lengths[request.rows].tolist()):
                raise RuntimeError(f"request {request.id} has keys of other steps than tokens. This is a bug.")

    def _step(self, requests: Sequence[_Request]) -> list[Choice]:
        """One decoder step. Rows of requests that go on hold the caches of their new hypotheses afterwards."""
        rows = np.concatenate([request.rows for request in requests])
        slots = self._targets.extend(rows)
        try:
            self._clear_pages()
            self._device.copy_pages(*self._copies)
            logits = self._device.step(self._decoder_rows(requests, rows, slots))
            choices = choose(logits, [request.hypotheses for request in requests])
        except BaseException:
            self._targets.retract(rows)  # what was written there is written again before it is read
            raise
        self._copies = self._fork(requests, choices)
        for request, choice in zip(requests, choices, strict=True):
            if not choice.is_finished:
                request.hypotheses.accept(choice)
        return choices

    def _fork(self, requests: Sequence[_Request], choices: Sequence[Choice]) -> tuple[Int64Array, Int64Array]:
        """Continue in the rows of each request what their parents hold. Returns the copies that this needs."""
        forks = [(request.rows, choice.parents) for request, choice in zip(requests, choices, strict=True)]
        moved = [(own, own[parents]) for own, parents in forks if parents is not None]
        return self._targets.reorder(*map(np.concatenate, zip(*moved, strict=True))) if moved else (_NONE, _NONE)

    def _decoder_rows(self, requests: Sequence[_Request], rows: Int64Array, slots: Int64Array) -> DecoderRows:
        lengths = self._targets.lengths[rows]
        sources = np.concatenate([request.source_row for request in requests])
        return DecoderRows(
            tokens=np.array([row[-1] for request in requests for row in request.hypotheses.rows], np.int64),
            slots=slots,
            pages=self._targets.pages[rows],
            lengths=lengths,
            source_pages=self._sources.pages[sources],
            source_lengths=self._sources.lengths[sources],
            rows_per_source=np.array([len(request.rows) for request in requests]),
        )

    def _fitting(self, requests: Iterable[_Request]) -> list[_Request]:
        """The first requests, as many as there are pages and rows for, and as the encoder takes at once."""
        fitting: list[_Request] = []
        num_pages = num_rows = num_tokens = 0
        num_free_pages = self.num_free_pages
        for request in requests:
            num_pages += request.num_pages
            num_rows += request.hypotheses.options.num_beams
            num_tokens += len(request.source)
            has_room = num_pages <= num_free_pages and num_rows <= self._targets.num_free_rows
            if not has_room or (fitting and num_tokens > self._limits.max_encode_tokens):
                break
            fitting.append(request)
        return fitting

    def _open(self, request: _Request) -> None:
        request.source_row = self._sources.open(1)
        request.rows = self._targets.open(request.hypotheses.options.num_beams)

    def _close(self, request: _Request, *, has_ended: bool) -> None:
        """Give rows and pages back. Those of a request that has not ended as it should may hold NaN."""
        pages = np.concatenate([self._sources.close(request.source_row), self._targets.close(request.rows)])
        request.source_row = request.rows = _NONE
        if not has_ended:
            self._unclean.append(pages)
        is_needed = ~np.isin(self._copies[1], pages)
        self._copies = self._copies[0][is_needed], self._copies[1][is_needed]

    def _clear_pages(self) -> None:
        if self._unclean:
            self._device.clear_pages(np.concatenate(self._unclean))
            self._unclean.clear()

    def _run_encoder(self, requests: Sequence[_Request]) -> None:
        if requests:
            slots = [self._sources.fill(int(request.source_row[0]), len(request.source)) for request in requests]
            self._clear_pages()
            self._device.encode([request.source for request in requests], slots)

    def _leave(self, request: _Request, *, has_ended: bool) -> None:
        del self._active[request.id]
        self._close(request, has_ended=has_ended)


def _named(requests: Mapping[int, _Request], ids: Iterable[int]) -> list[_Request]:
    """The requests of some ids, each of which is there and named once."""
    ids = list(ids)
    if len(set(ids)) < len(ids) or not requests.keys() >= set(ids):
        raise ValueError(f"requests {ids} were named, of which one is unknown or named twice. This is a bug.")
    return [requests[id] for id in ids]


def _finish(request: _Request, choice: Choice) -> Literal["stop", "length", "invalid"]:
    if choice.is_invalid:
        return "invalid"
    has_stopped = choice.tokens[-1:] and choice.tokens[-1] in request.hypotheses.options.eos_token_ids
    return "stop" if has_stopped else "length"
