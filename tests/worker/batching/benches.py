"""Dispatchers over a runner of each kind, which are given single sequences, and what comes out of them."""

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal, Self

import numpy as np

from penstock.engine import EngineLanes
from penstock.engine.types import BatchOutput, Float32Array, ModelInfo, PackedBatch
from penstock.producer.errors import PenstockError
from penstock.scheduler import LaneDriver, PackedCost, Scheduler, SchedulerSettings
from penstock.worker.batching.batch import BatchStats
from penstock.worker.batching.dispatcher import Dispatcher
from penstock.worker.batching.job_runner import JobEvents, JobRunner
from penstock.worker.batching.lane_runner import LaneRunner
from penstock.worker.batching.stage import StageCallbacks
from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.request import Rejection
from penstock.worker.requests.sequence_block import SequenceBlock, SequenceResults
from penstock.worker.stepping.step_model import StepLoad
from tests.worker.batching.small_engine import SmallEngine
from tests.worker.conftest import as_one, sequence_maker
from tests.worker.stepping.manual import CountingRunner, ManualThread

Trigger = Literal["lazy", "hungry"]
Partition = Literal["fifo", "sorted"]  # sorted plans all queued jobs at once: batches wait, planned, for the lanes
FREE = PackedCost(0.0, 0.0, 0.0, 0.0)
SECOND_A_TOKEN = PackedCost(0.0, 0.0, 1.0, 0.0)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Told(Dispatcher):
    """Given single sequences, of which it makes blocks, as the preparation does, if the test is of those."""

    def __init__(self, runner: JobRunner, callbacks: StageCallbacks, clock: Clock, *, as_blocks: bool) -> None:
        super().__init__(runner, callbacks, clock=clock)
        self.given: dict[tuple[int, int], SequenceBlock] = {}  # by request and index
        self.as_blocks = as_blocks

    def add(self, sequences: Sequence[SequenceBlock]) -> None:
        self.given.update({(id(one.request), one.indices[0]): one for one in sequences})
        if self.as_blocks:
            grouped = itertools.groupby(sequences, key=lambda one: one.request)
            sequences = [as_one(list(group)) for _, group in grouped]
        super().add(sequences)


class Bench(ABC):
    """A dispatcher over a runner, and what came out of it."""

    def __init__(self, runner: JobRunner, clock: Clock, *, as_blocks: bool = False) -> None:
        self.clock = clock
        self.make = sequence_maker()
        self.results: list[tuple[SequenceBlock, Float32Array]] = []  # of requests that had not failed
        self.stats: list[BatchStats] = []  # reported with results
        self.rejections: list[Rejection] = []
        self.unhealthy: list[BaseException] = []
        self.partials: list[tuple[Sequence[SequenceBlock], Float32Array]] = []
        self._last: BatchStats | None = None
        self._changed = asyncio.Event()
        callbacks = StageCallbacks(
            self._on_ran,
            self._on_results,
            self._on_rejected,
            self._on_unhealthy,
            lambda sequences, result: self.partials.append((sequences, result)),
        )
        self.dispatcher = Told(runner, callbacks, clock, as_blocks=as_blocks)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    @abstractmethod
    def hold(self) -> None:
        """Keep sequences that begin from now on from ending before `let_go`."""

    @abstractmethod
    def begin(self) -> None:
        """Begin the added sequences, as far as there is room. A sequence of one step may end."""

    @abstractmethod
    def let_go(self) -> None:
        """End the effect of `hold`."""

    @abstractmethod
    def fail(self, always: bool) -> None:
        """Whether the engine fails from now on, whatever it is given."""

    @property
    @abstractmethod
    def ran(self) -> list[list[int]]:
        """The token ids that the engine was given, in their order."""

    @abstractmethod
    async def until(self, condition: Callable[[], bool]) -> None:
        """Let the engine run until this holds."""

    @abstractmethod
    async def close(self) -> None:
        """Close the dispatcher, and wait for what still runs. Idempotent."""

    def one_each(self, *sequences: Sequence[int]) -> list[SequenceBlock]:
        """A request for each sequence."""
        return [sequence for ids in sequences for sequence in self.make(ids)]

    async def finish(self, num_ended: int) -> None:
        """Wait for so many results and rejections."""
        await self.until(lambda: len(self.results) + len(self.rejections) >= num_ended)

    def is_done(self, sequences: list[SequenceBlock]) -> bool:
        have_results = {id(sequence) for sequence, _ in self.results}
        return sequences[0].request.is_failed or have_results.issuperset(map(id, sequences))

    @property
    def ids(self) -> list[list[int]]:
        """The token ids of the sequences that have results, in the order of their results."""
        return [sequence.token_ids.tolist() for sequence, _ in self.results]

    def errors(self) -> list[type[PenstockError]]:
        return [type(rejection.error) for rejection in self.rejections]

    def _on_ran(self, stats: BatchStats) -> None:
        self._last = stats

    def _on_results(self, results: SequenceResults, stats: BatchStats) -> None:
        assert self._last is not None
        assert stats.number == self._last.number
        self.stats.append(stats)
        for block, rows in results:
            if not block.request.is_failed:
                given = [self.dispatcher.given[id(block.request), index] for index in block.indices]
                assert block.token_ids.tolist() == np.concatenate([one.token_ids for one in given]).tolist()
                self.results += zip(given, rows, strict=True)
        self._changed.set()

    def _on_rejected(self, rejections: Sequence[Rejection]) -> None:
        self.rejections += rejections
        self._changed.set()

    def _on_unhealthy(self, error: BaseException) -> None:
        self.unhealthy.append(error)
        self._changed.set()


class CountingLanes(EngineLanes):
    num_submitted = 0

    def submit(self, batch: PackedBatch) -> asyncio.Future[BatchOutput]:
        self.num_submitted += 1
        return super().submit(batch)


class LaneBench(Bench):
    """Over lanes of a small engine. What is added begins as far as there are lanes."""

    def __init__(
        self,
        info: ModelInfo,
        trigger: Trigger = "hungry",
        num_lanes: int = 1,
        cost: PackedCost = FREE,
        partition: Partition = "fifo",
        max_sequences: int = 4,
        engine: SmallEngine | None = None,
        *,
        as_blocks: bool = False,
    ) -> None:
        clock = Clock()
        self.engine = engine or SmallEngine(info)
        self.lanes = CountingLanes(self.engine, num_lanes)
        chosen = SchedulerSettings(10.0, max_sequences, 1000, None, trigger, partition, num_lanes=num_lanes)
        self.scheduler = Scheduler(chosen, cost)
        self.driver = LaneDriver(self.scheduler, num_lanes)
        self.runner = LaneRunner(self.lanes, self.driver, cost, clock)
        super().__init__(self.runner, clock, as_blocks=as_blocks)
        self.runner.start(self.dispatcher)

    def hold(self) -> None:
        self.engine.may_run.clear()

    def begin(self) -> None: ...

    def let_go(self) -> None:
        self.engine.may_run.set()

    def fail(self, always: bool) -> None:
        self.engine.broken = always

    @property
    def ran(self) -> list[list[int]]:
        return [ids for batch in self.engine.batches for ids in batch]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(300):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def close(self) -> None:
        self.let_go()
        self.dispatcher.close()
        await self.lanes.close()
        for _ in range(2):  # callbacks of the futures that closing completed
            await asyncio.sleep(0)


class StepBench(Bench):
    """Over a runner that counts steps, and takes a turn when the test waits, or says so."""

    def __init__(self, max_rows: int = 2) -> None:
        self.runner = CountingRunner(max_rows)
        self.thread = ManualThread(self.runner)
        super().__init__(self.thread, Clock())
        self.load = StepLoad(self.dispatcher.flights, 10)
        self.steps: list[BatchStats] = []  # of each turn

    def hold(self) -> None: ...

    def begin(self) -> None:
        self.turn(seconds=0.0)

    def let_go(self) -> None: ...

    def fail(self, always: bool) -> None:
        self.runner.broken = always

    @property
    def ran(self) -> list[list[int]]:
        return self.runner.started

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(1000):
            if condition():
                return
            self.turn(seconds=0.0)
        raise AssertionError("The steps end, and it does not hold.")

    def turn(self, num_turns: int = 1, seconds: float = 1.0) -> None:
        for _ in range(num_turns):
            self.clock.now += seconds
            try:
                events = self.thread.turn(self.clock.now)
            except ValueError as error:
                self.dispatcher.give_up(error)
            else:
                self.take(events)

    def take(self, events: JobEvents) -> None:
        self.dispatcher.on_events(events)

    async def close(self) -> None:
        self.dispatcher.close()
        self.turn()

    def _on_ran(self, stats: BatchStats) -> None:
        super()._on_ran(stats)
        self.steps.append(stats)
        self.load.observe(stats)


def records(*requests: list[SequenceBlock]) -> list[PendingRecord]:
    """The records of these requests."""
    return [sequences[0].request.record for sequences in requests]
