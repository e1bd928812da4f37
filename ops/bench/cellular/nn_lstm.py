"""Whole sentences given to nn.LSTM, sorted and packed in batches: serving without cells. On a GPU it is cuDNN's."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from penstock.engine.cells.contract import Int32Array
from penstock.worker.batching.job_runner import JobEvents
from penstock.worker.requests.sequence_work import SequenceWork
from penstock.worker.stepping.contract import StepJob

_NOTHING = np.zeros(0, np.float32)
_DEPTH = 2  # batches underway
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class LstmModel:
    """An embedding table [V, I] and an `nn.LSTM`, on a device."""

    module: nn.LSTM
    words: Tensor

    def run(self, tokens: Tensor, num_rows: Tensor) -> None:
        """Tokens on the device, by step, and how many rows each step has, on the host."""
        self.module(PackedSequence(nn.functional.embedding(tokens, self.words), num_rows))


class _Underway(NamedTuple):
    """A batch that was started."""

    ids: list[int]
    ended: torch.cuda.Event | None


class NnLstmRunner:
    """Runs `SequenceWork` of one chain. A batch holds the first in the queue, and ends as one."""

    def __init__(self, model: LstmModel, max_rows: int) -> None:
        self._model, self._max_rows = model, max_rows
        self._queue: deque[StepJob] = deque()
        self._underway: deque[_Underway] = deque()

    @property
    def is_idle(self) -> bool:
        """See `StepRunner.is_idle`."""
        return not self._queue and not self._underway

    def add(self, jobs: Sequence[StepJob]) -> None:
        """See `StepRunner.add`."""
        self._queue.extend(jobs)

    @torch.inference_mode()
    def advance(self, now: float) -> JobEvents:
        """See `StepRunner.advance`."""
        while self._queue and len(self._underway) < _DEPTH:
            self._underway.append(self._start())
        batch = self._underway.popleft()
        if batch.ended is not None:
            batch.ended.synchronize()
        return JobEvents(finished=[(job_id, _NOTHING) for job_id in batch.ids])

    def _start(self) -> _Underway:
        jobs = [self._queue.popleft() for _ in range(min(self._max_rows, len(self._queue)))]
        packed, num_rows = _packed(sorted((_tokens(job) for job in jobs), key=len, reverse=True))
        is_cuda = self._model.words.is_cuda
        if is_cuda:
            packed = packed.pin_memory().to(self._model.words.device, non_blocking=True)
        self._model.run(packed, num_rows)
        ended = None
        if is_cuda:
            ended = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch
            ended.record()
        return _Underway([job.id for job in jobs], ended)


@torch.inference_mode()
def offline_requests_per_s(model: LstmModel, sentences: Sequence[Int32Array], rows: int) -> float:
    """Of sentences that are all known before, sorted by length. Tokens are on the device already; embeddings are timed.

    Of the fastest of three rounds after one to warm up.
    """
    ordered = sorted(sentences, key=len, reverse=True)
    batches = [_packed(ordered[first : first + rows]) for first in range(0, len(ordered), rows)]
    on_device = [(tokens.to(model.words.device), num_rows) for tokens, num_rows in batches]
    seconds = []
    for _ in range(1 + _ROUNDS):
        _wait(model)
        started = time.perf_counter()
        for tokens, num_rows in on_device:
            model.run(tokens, num_rows)
        _wait(model)
        seconds.append(time.perf_counter() - started)
    return len(ordered) / min(seconds[1:])


def _packed(sentences: Sequence[Int32Array]) -> tuple[Tensor, Tensor]:
    """Tokens by step, as cuDNN takes them, and the rows of each step. The longest sentence comes first."""
    lengths = np.array([len(tokens) for tokens in sentences], np.int32)
    grid = np.zeros((len(sentences), lengths[0]), np.int32)
    is_token = np.arange(lengths[0]) < lengths[:, None]
    grid[is_token] = np.concatenate(sentences)
    return torch.from_numpy(grid.T[is_token.T]), torch.from_numpy(is_token.sum(0))


def _tokens(job: StepJob) -> Int32Array:
    if not isinstance(job.work, SequenceWork):
        raise TypeError(f"A job's work is a SequenceWork, not {type(job.work).__name__}. This is a bug.")
    return job.work.graph.inputs["token"].values


def _wait(model: LstmModel) -> None:
    if model.words.is_cuda:
        torch.cuda.synchronize()
