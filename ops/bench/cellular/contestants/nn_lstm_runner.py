"""A runner that gives whole sentences to nn.LSTM, sorted and packed in batches: serving without cells."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence

from penstock.engine.cells.contract import Int32Array
from penstock.ops.bench.cellular.loads.tape import RecordedBatch, Tape
from penstock.ops.bench.cellular.workloads.cell_work import CellWork
from penstock.ops.bench.cellular.workloads.lstm_models import LstmModel
from penstock.worker.stepping.contract import StepEvents, StepJob

_NOTHING = np.zeros(0, np.float32)
_DEPTH = 2  # batches underway


class _Underway(NamedTuple):
    """A batch that was started."""

    ids: list[int]
    firsts: Int32Array
    lengths: Int32Array  # descending
    started: float
    ended: torch.cuda.Event | None


class NnLstmRunner:
    """Runs `CellWork` of one chain, on a GPU by cuDNN. A batch holds the first in the queue, and ends as one."""

    def __init__(self, model: LstmModel, max_rows: int, tape: Tape, clock: Callable[[], float]) -> None:
        self._model, self._max_rows, self._tape, self._clock = model, max_rows, tape, clock
        self._queue: deque[StepJob] = deque()
        self._underway: deque[_Underway] = deque()
        self._free_at = 0.0

    @property
    def is_idle(self) -> bool:
        """See `StepRunner.is_idle`."""
        return not self._queue and not self._underway

    def add(self, jobs: Sequence[StepJob]) -> None:
        """See `StepRunner.add`."""
        self._queue.extend(jobs)

    @torch.inference_mode()
    def advance(self, now: float) -> StepEvents:
        """See `StepRunner.advance`."""
        while self._queue and len(self._underway) < _DEPTH:
            self._underway.append(self._start())
        batch = self._underway.popleft()
        if batch.ended is not None:
            batch.ended.synchronize()
        begin, self._free_at = max(batch.started, self._free_at), self._clock()
        longest = int(batch.lengths[0])
        self._tape.batches.append(RecordedBatch(begin, self._free_at, "nn.LSTM", longest, batch.lengths, batch.firsts))
        return StepEvents(finished=[(job_id, _NOTHING) for job_id in batch.ids])

    def _start(self) -> _Underway:
        jobs = [self._queue.popleft() for _ in range(min(self._max_rows, len(self._queue)))]
        sentences = sorted((_tokens(job) for job in jobs), key=len, reverse=True)
        lengths = np.array([len(tokens) for tokens in sentences], np.int32)
        grid = np.zeros((len(jobs), lengths[0]), np.int32)
        is_token = np.arange(lengths[0]) < lengths[:, None]
        grid[is_token] = np.concatenate(sentences)
        packed = torch.from_numpy(grid.T[is_token.T])  # by step, as cuDNN takes them
        started, words = self._clock(), self._model.words
        if words.is_cuda:
            packed = packed.pin_memory().to(words.device, non_blocking=True)
        embedded = torch.nn.functional.embedding(packed, words)
        self._model.module(PackedSequence(embedded, torch.from_numpy(is_token.sum(0))))
        ended = None
        if words.is_cuda:
            ended = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch
            ended.record()
        ids = [job.id for job in jobs]
        return _Underway(ids, grid[:, 0], lengths, started, ended)


def _tokens(job: StepJob) -> Int32Array:
    if not isinstance(job.work, CellWork):
        raise TypeError(f"A job's work is a CellWork, not {type(job.work).__name__}. This is a bug.")
    return job.work.unfolded.inputs["token"].values
