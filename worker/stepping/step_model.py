"""A model that is served step by step: its runner on a thread, the dispatcher of its requests, and their figures."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from penstock.engine.types import ModelInfo
from penstock.scheduler.costs.errors import PredictionErrors
from penstock.worker.batching.batch import BatchStats
from penstock.worker.batching.dispatcher import Dispatcher
from penstock.worker.batching.engine_probe import IDLE_S, LOOP_S, PROBE_S
from penstock.worker.batching.flights import Flights
from penstock.worker.batching.job_runner import JobEvents
from penstock.worker.batching.stage import BatchStage, StageCallbacks
from penstock.worker.requests.generation import ReadOptions
from penstock.worker.requests.sequence_block import SequenceBlock
from penstock.worker.requests.sequence_work import ReadFields
from penstock.worker.resolved_settings import ResolvedSettings
from penstock.worker.stepping.contract import StepJob, StepRunner
from penstock.worker.stepping.step_thread import StepThread

_PROBE = -1  # job id; those of the dispatcher begin at 0
_WEIGHT = 0.98  # in the time of a sequence, of what was seen before, at each one that ends


class StepLoad:
    """Implements `StageLoad`: what waits, the time of a sequence, and the errors of predicted tasks."""

    def __init__(self, flights: Flights, token_budget: int) -> None:
        self._flights = flights
        self._device_s = self._num_ended = 0.0  # decayed sums
        self._errors = PredictionErrors()
        self.token_budget = token_budget

    def observe(self, stats: BatchStats) -> None:
        """A task ran. Called on the event loop."""
        num_ended = stats.num_ended or 0
        decay = _WEIGHT**num_ended
        self._device_s = self._device_s * decay + stats.device_s
        self._num_ended = self._num_ended * decay + num_ended
        if stats.predicted_s > 0 and stats.device_s > 0:
            self._errors.note(stats.predicted_s, stats.device_s)

    @property
    def num_queued(self) -> int:
        """See `StageLoad`."""
        return self._flights.num_queued

    @property
    def queued_tokens(self) -> int:
        """See `StageLoad`."""
        return self._flights.queued_tokens

    def backlog_s(self, now: float) -> float:
        """See `StageLoad`. By the device time of a sequence among those that it runs with."""
        return len(self._flights) * (self._device_s / self._num_ended if self._num_ended else 0.0)

    def errors(self) -> tuple[float, float]:
        """See `StageLoad`."""
        return self._errors.quantiles()


class StepModel:
    """Implements `ServedModel` with a step runner."""

    def __init__(
        self,
        info: ModelInfo,
        runner: StepRunner,
        work_of: Callable[[SequenceBlock], object],
        probe: object,
        read_options: ReadOptions | None = None,
        read_fields: ReadFields | None = None,
    ) -> None:
        """Called on the event loop. `work_of`: the runner's input for a sequence. `probe`: its smallest input."""
        self.info = info
        self.read_options = read_options
        self.read_fields = read_fields
        self._probe = probe
        self._thread = StepThread(runner, work_of)
        self._loop = asyncio.get_running_loop()
        self._probing: asyncio.Future[str] | None = None
        self._closed = False

    def stage(self, settings: ResolvedSettings, callbacks: StageCallbacks) -> BatchStage:
        """See `ServedModel`."""

        def ran(stats: BatchStats) -> None:
            load.observe(stats)
            callbacks.ran(stats)

        dispatcher = Dispatcher(self._thread, replace(callbacks, ran=ran))
        load = StepLoad(dispatcher.flights, settings.max_batch_tokens)

        def on_events(events: JobEvents) -> None:
            self._end_probe(events)
            dispatcher.on_events(events)

        self._thread.start(on_events, dispatcher.give_up)
        return BatchStage(dispatcher, load, lambda seconds: None)

    def fault(self) -> str:
        """See `ServedModel`. An idle runner runs one small job."""
        asking = asyncio.run_coroutine_threadsafe(self._ask(), self._loop)
        try:
            return asking.result(PROBE_S + LOOP_S)
        except TimeoutError:
            asking.cancel()
            return "the event loop stands still"

    async def close(self, timeout_s: float) -> bool:
        """See `ServedModel`."""
        self._closed = True
        return await self._thread.close(timeout_s)

    async def _ask(self) -> str:
        if self._closed or not self._thread.is_alive or time.monotonic() - self._thread.idle_since < IDLE_S:
            return ""
        if self._probing is None or self._probing.done():
            if self._thread.is_running:
                return ""  # a turn that takes long is the watchdog's
            self._probing = self._loop.create_future()
            now = time.monotonic()
            self._thread.put([StepJob(_PROBE, self._probe, now, None, False)])
        ended, _ = await asyncio.wait((self._probing,), timeout=PROBE_S)
        return self._probing.result() if ended else f"the idle engine has not run one step for {PROBE_S:g} s"

    def _end_probe(self, events: JobEvents) -> None:
        probing = self._probing
        if probing is None or probing.done():
            return
        if _PROBE in events.failed:
            probing.set_result(f"the idle engine fails on one step: {events.failed[_PROBE]!r}")
        elif any(job_id == _PROBE for job_id, _ in events.finished):
            probing.set_result("")
