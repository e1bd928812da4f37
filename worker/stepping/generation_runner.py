"""Runs requests of an encoder-decoder as cells: one step of the encoder, then a chain of decoder steps."""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np

from penstock.engine.errors import EngineError, InvalidOption, NotFinite
from penstock.engine.generation.generator import Generator, Progress
from penstock.engine.generation.limits import GeneratorLimits
from penstock.engine.types import Float32Array, Int32Array
from penstock.scheduler.cellular import CellGraph, CellJob, CellRule, CellScheduler, CellTask
from penstock.scheduler.cellular.types import BoolArray
from penstock.scheduler.settings import AdmissionName
from penstock.scheduler.types import RejectedJob, Wait
from penstock.worker.batching.batch import BatchStats
from penstock.worker.batching.job_runner import JobEvents
from penstock.worker.stepping.contract import StepJob, stats_of
from penstock.worker.stepping.generation_work import GenerationWork, generation_row
from penstock.worker.stepping.isolation import StepIsolation, StepWork

ENCODE, DECODE = 0, 1  # cells
_MAX_ENCODE_ROWS = 32  # sources of one task: sequences that are being decoded wait for it
_PROBE = -2  # an id that no job has


class GenerationRunner:
    """Implements `StepRunner` with a generator, and the cellular scheduler for deadlines, classes and quanta.

    A sequence holds pages from its first step to its last: those that it needs, or those that its share of the rows
    stands for. They are the scheduler's slots. So a sequence that joins finds pages and rows free, and the others wait.

    Batches of the encoder and quanta of the decoder take turns while there are both. A sequence for which pages are
    free joins after the task underway and one quantum at most. Sequences that are decoded wait for one batch of
    `max_encode_tokens` between two quanta.
    """

    def __init__(
        self,
        generator: Generator,
        limits: GeneratorLimits,
        probe: GenerationWork,
        max_quantum: int,
        admission: AdmissionName = "deadline",
        clock: Callable[[], float] = time.perf_counter,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """`limits`: the generator's. `probe`: clean work of one page and one row. `clock` measures tasks.

        max_quantum: decoder steps of one task under load. admission: see `CellScheduler`. `pause` waits before a retry.
        """
        rules = (
            CellRule("encode", min(_MAX_ENCODE_ROWS, limits.max_rows), max_size=limits.max_encode_tokens, max_passes=0),
            CellRule("decode", limits.max_rows, max_steps=max_quantum, max_passes=1),
        )
        self._generator = generator
        self._limits = limits
        self._probe = probe
        self._clock = clock
        self._rules = rules
        self._scheduler = CellScheduler(rules, 1, limits.num_pages, admission)
        self._encoding = StepIsolation(limits.max_encode_tokens, pause=pause)
        self._decoding = StepIsolation(limits.max_rows, pause=pause)
        self.predicted_s = 0.0  # see `StepRunner`
        self._works: dict[int, GenerationWork] = {}  # by job id
        self._tokens: dict[int, list[int]] = {}  # of those that are encoded: their tokens so far
        self._failed: dict[int, EngineError] = {}  # this and the next: to be returned
        self._expired: list[RejectedJob] = []
        self._now = self._began = 0.0  # when the turn began, and by `clock` its task
        self._device_s = 0.0  # of its runs that did not fail: pauses before retries are no cost of a task

    @property
    def is_idle(self) -> bool:
        """See `StepRunner`."""
        return not (self._works or self._failed or self._expired)

    def add(self, jobs: Sequence[StepJob]) -> None:
        """See `StepRunner`. The work of each job is a `GenerationWork`."""
        cells = []
        for job in jobs:
            work = job.work
            if not isinstance(work, GenerationWork):
                raise TypeError(f"Job {job.id} has the work of another runner: {type(work)}. This is a bug.")
            try:
                num_pages = self._pages(work)
            except InvalidOption as error:
                self._failed[job.id] = error
                continue
            graph = CellGraph.of_stages((ENCODE, 1), (DECODE, work.options.max_new_tokens))
            size = len(work.token_ids)
            cells.append(CellJob(job.id, graph, job.arrival, job.deadline, job.bulk, num_pages, size))
            self._works[job.id] = work
        self._expire(self._scheduler.add(cells, max([job.arrival for job in jobs], default=0.0)))

    def cancel(self, ids: Sequence[int]) -> None:
        """See `StepRunner`."""
        self._scheduler.cancel(ids)
        for job_id in ids:
            self._leave(job_id)
            self._failed.pop(job_id, None)
        self._expired = [job for job in self._expired if job.id not in ids]

    def idle(self) -> bool:
        """See `StepRunner`."""
        return self._generator.idle()

    def advance(self, now: float) -> JobEvents:
        """See `StepRunner`. One task runs: sources are encoded, or sequences decoded for a quantum.

        Raises what the generator raises on clean work.
        """
        self._now = now
        planned = self._scheduler.poll(now)
        self._expire(planned.rejected)
        if isinstance(planned, Wait):
            return self._events(JobEvents())
        self._began, self._device_s, self.predicted_s = self._clock(), 0.0, planned.predicted_s
        events = self._encode(planned) if planned.cell == ENCODE else self._decode(planned)
        self.predicted_s = 0.0
        return self._events(events)

    def _pages(self, work: GenerationWork) -> int:
        """Pages that a sequence holds. Raises InvalidOption where it needs more pages than there are."""
        limits = self._limits
        pages_per_row = -(-limits.num_pages // limits.max_rows)
        needed = limits.pages_of(len(work.token_ids), work.options)
        limits.require_pages(needed)
        return min(limits.num_pages, max(needed, work.options.num_beams * pages_per_row))

    def _encode(self, task: CellTask) -> JobEvents:
        works = {job_id: self._works[job_id] for job_id in task.jobs.tolist()}
        sizes = {job_id: len(work.token_ids) for job_id, work in works.items()}
        starting = []
        for job_id, work in works.items():
            try:
                self._generator.start(job_id, work.token_ids, work.options, work.seed)
            except EngineError as error:
                self._fail(job_id, error)
            else:
                starting.append(job_id)
        self._encoding.run(starting, StepWork(self._encode_some, self._judge, sizes.__getitem__))
        num_tokens = sum(sizes.values())
        stats = self._finish(task, np.ones(len(works), np.int32), np.ones(len(works), np.bool_), num_tokens, 0)
        return JobEvents(started=list(works), stats=stats)

    def _encode_some(self, ids: Sequence[int]) -> None:
        """The generator takes so many at once as its limit of tokens allows."""
        remaining = [job_id for job_id in ids if job_id not in self._tokens]
        while remaining:
            began = self._clock()
            joined = self._generator.encode(remaining)
            if not joined:
                raise RuntimeError("A sequence found no free pages. This is a bug.")
            self._device_s += self._clock() - began
            self._tokens.update((job_id, []) for job_id in joined)
            remaining = remaining[len(joined) :]

    def _decode(self, task: CellTask) -> JobEvents:
        ids = task.jobs.tolist()
        num_left = dict.fromkeys(ids, task.quantum)  # steps of the task; a sequence may end before
        finished: list[tuple[int, Float32Array]] = []
        has_invalid = False

        def decode(quantum: int, some: Sequence[int]) -> None:
            nonlocal has_invalid
            began = self._clock()
            for progress in self._generator.decode(some, quantum):
                num_left[progress.id] -= progress.steps
                self._note(progress, finished)
                has_invalid |= progress.finish == "invalid"
            self._device_s += self._clock() - began

        # Once, unless a step within the quantum has failed: sequences are then left behind the others.
        while running := [job_id for job_id in ids if num_left[job_id] and job_id in self._tokens]:
            quantum = min([num_left[job_id] for job_id in running])
            self._decoding.run(running, StepWork(partial(decode, quantum), self._judge, self._num_beams))
        if has_invalid and not (self._tokens or finished):
            self._run_probe()  # no other sequence shows that the generator works
        ran = task.quantum - np.array([num_left[job_id] for job_id in ids], np.int32)
        is_stopped = np.array([job_id not in self._tokens for job_id in ids])
        stats = self._finish(task, ran, is_stopped, int(ran.sum()), len(finished))
        streaming = [job_id for job_id in ids if self._tokens.get(job_id) and self._works[job_id].stream]
        emitted = [(job_id, generation_row(self._tokens[job_id], "partial")) for job_id in streaming]
        return JobEvents(finished=finished, emitted=emitted, stats=stats)

    def _num_beams(self, job_id: int) -> int:
        return self._works[job_id].options.num_beams

    def _note(self, progress: Progress, finished: list[tuple[int, Float32Array]]) -> None:
        tokens = self._tokens[progress.id]
        tokens += progress.tokens
        if progress.finish == "invalid":
            self._fail(progress.id, NotFinite("The model's scores are not finite."))
        elif progress.finish == "no token":
            self._fail(progress.id, InvalidOption(f"The options leave no token that could follow token {len(tokens)}."))
        elif progress.finish is not None:
            self._forget(progress.id)
            finished.append((progress.id, generation_row(tokens, progress.finish)))

    def _judge(self, job_id: int, error: Exception) -> None:
        """A sequence failed alone: it is at fault if a probe runs."""
        self._leave(job_id)
        self._run_probe()
        failure = EngineError(f"{error!r}")
        failure.__cause__ = error
        self._fail(job_id, failure)

    def _run_probe(self) -> None:
        """Generate for clean work. Raises what a generator at fault raises."""
        probe = self._probe
        self._generator.start(_PROBE, probe.token_ids, probe.options, probe.seed)
        try:
            self._generator.encode([_PROBE])
            if any(one.id == _PROBE and one.finish == "invalid" for one in self._generator.decode([_PROBE])):
                raise NotFinite("the scores of clean work are not finite.")
        finally:
            self._generator.cancel(_PROBE)

    def _finish(
        self, task: CellTask, ran: Int32Array, is_stopped: BoolArray, num_steps: int, num_ended: int
    ) -> BatchStats:
        now, device_s = self._now + self._clock() - self._began, self._device_s
        self._scheduler.finished(task.id, now, ran, is_stopped, device_s)
        return stats_of(task, self._rules[task.cell].name, num_steps, device_s, num_ended)

    def _fail(self, job_id: int, error: EngineError) -> None:
        self._scheduler.cancel([job_id])
        self._forget(job_id)
        self._failed[job_id] = error

    def _leave(self, job_id: int) -> None:
        self._forget(job_id)
        self._generator.cancel(job_id)

    def _forget(self, job_id: int) -> None:
        self._works.pop(job_id, None)
        self._tokens.pop(job_id, None)

    def _expire(self, rejected: Iterable[RejectedJob]) -> None:
        for job in rejected:
            self._leave(job.id)
            self._expired.append(job)

    def _events(self, events: JobEvents) -> JobEvents:
        failed, self._failed = self._failed, {}
        counts = self._encoding.take_runs() + self._decoding.take_runs()
        runs = {job_id: counts[job_id] for job_id in failed if counts[job_id]}
        expired, self._expired = self._expired, []
        return events._replace(failed=failed, expired=expired, runs=runs)
