"""An encoder that is served: its lanes, its scheduler, and the dispatcher between them."""

from dataclasses import replace

from penstock.engine import EngineLanes
from penstock.engine.types import Engine
from penstock.scheduler import LaneDriver, LearnedCost, Scheduler
from penstock.worker.batching.batch import BatchStats
from penstock.worker.batching.dispatcher import Dispatcher
from penstock.worker.batching.engine_probe import EngineProbe
from penstock.worker.batching.lane_runner import LaneRunner
from penstock.worker.batching.stage import BatchStage, StageCallbacks
from penstock.worker.batching.token_budget import TokenBudget
from penstock.worker.requests.generation import ReadOptions
from penstock.worker.requests.sequence_work import ReadFields
from penstock.worker.resolved_settings import ResolvedSettings, scheduler_settings


class EncoderLoad:
    """Implements `StageLoad`."""

    def __init__(self, driver: LaneDriver, cost: LearnedCost, token_budget: TokenBudget) -> None:
        self._driver = driver
        self._cost = cost
        self._token_budget = token_budget

    @property
    def num_queued(self) -> int:
        """See `StageLoad`."""
        return self._driver.scheduler.num_queued

    @property
    def queued_tokens(self) -> int:
        """See `StageLoad`."""
        return self._driver.scheduler.queued_tokens

    @property
    def token_budget(self) -> int:
        """See `StageLoad`."""
        return self._token_budget.tokens

    def backlog_s(self, now: float) -> float:
        """See `StageLoad`."""
        return self._driver.busy_s(now) + self._driver.scheduler.backlog_s

    def errors(self) -> tuple[float, float]:
        """See `StageLoad`."""
        return self._cost.errors()


class EncoderModel:
    """Implements `ServedModel`."""

    read_options: ReadOptions | None = None
    read_fields: ReadFields | None = None

    def __init__(self, engine: Engine, num_lanes: int, cost: LearnedCost) -> None:
        """Called on the event loop. `cost` was fitted to the engine, which is warm."""
        self.info = engine.info
        self._lanes = EngineLanes(engine, num_lanes)
        self._cost = cost
        self._probe = EngineProbe(self._lanes, min(engine.info.tasks))

    def stage(self, settings: ResolvedSettings, callbacks: StageCallbacks) -> BatchStage:
        """See `ServedModel`."""
        cost = self._cost
        scheduler = Scheduler(scheduler_settings(settings), cost)
        driver = LaneDriver(scheduler, self._lanes.num_lanes)

        def ran(stats: BatchStats) -> None:
            sums = stats.sums
            cost.observe(sums.tokens, sums.squares, sums.longest, sums.count, stats.device_s)
            callbacks.ran(stats)

        runner = LaneRunner(self._lanes, driver, cost)
        dispatcher = Dispatcher(runner, replace(callbacks, ran=ran))
        runner.start(dispatcher)
        return BatchStage(dispatcher, EncoderLoad(driver, cost, runner.token_budget), scheduler.replied)

    def fault(self) -> str:
        """See `ServedModel`."""
        return self._probe.fault()

    async def close(self, timeout_s: float) -> bool:
        """See `ServedModel`."""
        return await self._lanes.close(timeout_s)
