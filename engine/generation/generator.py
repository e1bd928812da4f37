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
from functools import lru_cache
from typing import Literal, NamedTuple

from penstock.engine.errors import GeneratorFull
from penstock.engine.generation.cpu import CpuSeq2Seq
from penstock.engine.generation.device import Seq2SeqDevice
from penstock.engine.generation.limits import GeneratorLimits
from penstock.engine.generation.requests import GenerationRequest, RequestTable
from penstock.engine.generation.selection import Choice, Hypotheses, choose
from penstock.engine.generation_options import GenerationOptions
from penstock.engine.model.seq2seq import Seq2SeqWeights
from penstock.engine.types import Int32Array

_MOST_OPTIONS = 4096  # whose verdict is kept
_Finish = Literal["stop", "length", "invalid", "no token"]  # invalid: scores of the model that are not numbers


class Progress(NamedTuple):
    """Steps of one request that ran, and its new tokens, the end token included."""

    id: int
    tokens: tuple[int, ...]  # of beam search: none before the end, then all
    finish: _Finish | None = None
    steps: int = 1  # that ran


class Generator:
    """Encoder-decoder generation with a paged cache. Called by one thread; equal calls give equal results.

    A request waits after `start`, joins with `encode`, and leaves when `decode` reports its finish or with `cancel`.
    Joining reserves the pages that the request needs at most, so a request that has joined always finishes.
    A call that raises changes nothing that a later one reads, and leaves pages and rows as they were.
    """

    def __init__(
        self, weights: Seq2SeqWeights, limits: GeneratorLimits, threads: int = 1, device: Seq2SeqDevice | None = None
    ) -> None:
        """device: made for these weights and limits; None: a CPU.

        threads: of a CPU's matrix products; each call sets the calling thread's torch thread count to it.
        """
        self._weights = weights
        self._limits = limits
        self._device: Seq2SeqDevice = device or CpuSeq2Seq(weights, limits.num_pages + 1, limits.page_size, threads)
        self._search = self._device.search
        self._requests = RequestTable(limits)
        # Options of many requests are equal.
        self._is_searched = lru_cache(maxsize=_MOST_OPTIONS)(self._judge)

    @property
    def waiting(self) -> tuple[int, ...]:
        """Requests that have not joined, in the order in which they began to wait."""
        return tuple(self._requests.waiting)

    @property
    def active(self) -> tuple[int, ...]:
        """Requests that have joined and not finished, in the order in which they joined."""
        return tuple(self._requests.active)

    @property
    def num_free_pages(self) -> int:
        """Pages that no request has reserved."""
        return self._requests.num_free_pages

    def start(self, id: int, input_ids: Int32Array, options: GenerationOptions, seed: int = 0) -> None:
        """Let a request wait. `id` is none that is waiting or active. seed: of sampling.

        Raises InvalidSource, InvalidOption, and GeneratorFull where as many wait as may. Nothing is changed then.
        """
        waiting = self._requests.waiting
        if id in waiting or id in self._requests.active:
            raise ValueError(f"request {id} was started twice. This is a bug.")
        self._limits.require_source(input_ids, self._weights)
        is_searched = self._is_searched(options)
        num_pages = self._limits.pages_of(len(input_ids), options)
        self._limits.require_pages(num_pages)
        options.require_token_left(self._weights.target_vocab_size)
        if len(waiting) >= self._limits.max_waiting:
            raise GeneratorFull(f"{len(waiting)} requests wait, which is the limit. Try again later.")
        waiting[id] = GenerationRequest(
            id, input_ids, options, num_pages, None if is_searched else Hypotheses(options, seed)
        )

    def encode(self, ids: Iterable[int] | None = None) -> list[int]:
        """Run the encoder for waiting requests, which then join. Returns those that did, in order.

        ids: in order of precedence; all that wait by default. The first for which no room is free, and those after
        it, keep waiting, so that large requests are not overtaken forever. Where it raises, all keep waiting.
        """
        requests = self._requests
        joining = requests.fitting(requests.named_waiting(ids))
        if not joining:
            return []
        try:
            requests.open(joining)
            self._run_encoder(joining)
        except BaseException:
            requests.close(joining, has_ended=False)
            raise
        requests.active.update((request.id, requests.waiting.pop(request.id)) for request in joining)
        return [request.id for request in joining]

    def decode(self, ids: Iterable[int] | None = None, quantum: int = 1) -> list[Progress]:
        """Run up to `quantum` decoder steps of active requests; all of them by default.

        Returns what is new, in the order of `ids`: requests that ran a step. A step that raises changes nothing. The
        steps of the quantum before it are returned, and the error is raised by the next call.
        """
        chosen = self._requests.named_active(ids)
        hosted = [request for request in chosen if request.hypotheses is not None]
        searched = [request.id for request in chosen if request.hypotheses is None]
        progress = {request.id: Progress(request.id, (), None, 0) for request in hosted}
        for index in range(quantum):
            running = [request for request in hosted if progress[request.id].finish is None]
            if not running:
                break
            try:
                choices = self._step(running)
            except Exception:
                if index == 0:
                    raise
                break
            progress |= self._take(running, choices, progress)
        found = self._run_search(searched, quantum, bool(hosted))
        active = self._requests.active
        progress |= self._take([active[id] for id, _ in found], [choice for _, choice in found], {})
        in_order = [progress[request.id] for request in chosen if request.id in progress]
        return [one for one in in_order if one.steps]

    def step(self, quantum: int = 1) -> list[Progress]:
        """Let requests join for which there is room, then run up to `quantum` decoder steps of all."""
        self.encode()
        return self.decode(quantum=quantum)

    def idle(self) -> bool:
        """Let the device work for later steps. Returns whether it did. Called while nothing is to be computed."""
        return self._device.idle()

    def cancel(self, id: int) -> bool:
        """Let a request leave, with its pages. Returns whether it was waiting or active."""
        if id in self._requests.active:
            self._leave([self._requests.active[id]], has_ended=False)
            return True
        return self._requests.waiting.pop(id, None) is not None

    def check_integrity(self) -> None:
        """Raise unless all pages and rows belong to active requests or are free. Called by tests, and when idle."""
        self._requests.check_integrity()

    def _run_search(self, ids: Sequence[int], quantum: int, has_others: bool) -> list[tuple[int, Choice]]:
        """Steps of requests whose tokens the device chooses. An error waits where others have steps to return."""
        if self._search is None or not ids:
            return []
        try:
            return self._search.run(ids, quantum)
        except Exception:
            if has_others:
                return []
            raise

    def _step(self, requests: Sequence[GenerationRequest]) -> list[Choice]:
        """One decoder step. Rows of requests that go on hold the caches of their new hypotheses afterwards."""
        rows = self._requests.extend(requests)
        try:
            self._requests.clear_pages(self._device)
            self._requests.copy_pages(self._device)
            choices = choose(self._device.step(rows), [request.hosted for request in requests])
        except BaseException:
            self._requests.retract(requests)
            raise
        self._requests.fork(requests, choices)
        for request, choice in zip(requests, choices, strict=True):
            if not choice.is_finished:
                request.hosted.accept(choice)
        return choices

    def _run_encoder(self, requests: Sequence[GenerationRequest]) -> None:
        self._requests.clear_pages(self._device)
        self._device.encode([request.source for request in requests], self._requests.source_slots(requests))
        searched = [request for request in requests if request.is_searched]
        if self._search is not None and searched:
            self._search.open(self._requests.search_requests(searched))

    def _judge(self, options: GenerationOptions) -> bool:
        """Whether the device chooses tokens by these options. Raises InvalidOption."""
        self._limits.require_options(options, self._weights)
        return self._search is not None and self._search.supports(options)

    def _take(
        self, requests: Sequence[GenerationRequest], choices: Sequence[Choice], before: Mapping[int, "Progress"]
    ) -> dict[int, "Progress"]:
        """The progress of requests with one choice more. Those that have finished leave."""
        after: dict[int, Progress] = {}
        left: dict[bool, list[GenerationRequest]] = {True: [], False: []}  # by whether they have ended as they should
        for request, choice in zip(requests, choices, strict=True):
            id, finish = request.id, None
            if choice.is_finished:
                finish = _finish(request, choice)
                left[not choice.is_invalid].append(request)
            earlier = before.get(id)
            if earlier is None:
                after[id] = Progress(id, choice.tokens, finish, choice.steps)
            else:
                after[id] = Progress(id, earlier.tokens + choice.tokens, finish, earlier.steps + choice.steps)
        for has_ended, some in left.items():
            self._leave(some, has_ended=has_ended)
        return after

    def _leave(self, requests: Sequence[GenerationRequest], *, has_ended: bool) -> None:
        for request in requests:
            del self._requests.active[request.id]
            if request.is_searched and self._search is not None:
                self._search.close(request.id)
        self._requests.close(requests, has_ended=has_ended)


def _finish(request: GenerationRequest, choice: Choice) -> _Finish:
    if choice.is_invalid:
        return "no token" if choice.by_options else "invalid"
    has_stopped = choice.tokens[-1:] and choice.tokens[-1] in request.options.eos_token_ids
    return "stop" if has_stopped else "length"
