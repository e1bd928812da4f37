"""One run of any load: a cluster, a worker and seeded faults; then the worker comes to rest, and records are judged."""

import asyncio
import contextlib
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from penstock.ops.chaos.chaos_settings import ChaosSettings
from penstock.ops.chaos.faults.access import Privilege
from penstock.ops.chaos.faults.faults import Faults, moments
from penstock.ops.chaos.faults.scene import Scene
from penstock.ops.chaos.fleet.worker_command import WorkerCommand
from penstock.ops.chaos.verdict.commits import CommitWatch
from penstock.ops.chaos.verdict.fault_effects import KILLS, MOST_RECOVERY_S, SLOW_S
from penstock.ops.kafka import BrokerCluster, RegistryServer
from penstock.producer.keywords import IsolationLevel

DRAIN_S = 10.0
_START_S = 300.0
_LOAD_ENDS_S = 360.0  # at most, when it is told to end: twice the longest call
_REST_S = 180.0  # after the last fault: all is answered and committed
_LOOK_AGAIN_S = 5.0  # by then a leader has asked its followers how far they are
_STEADY_S = 60.0  # at most, before a fault that comes alone: its effect is measured
_BUGS = ("This is a bug", "Traceback")

Verdict = TypeVar("Verdict")


class FaultRun(ABC, Generic[Verdict]):
    """Makes one run. What it found is in its parts, for the report."""

    def __init__(
        self,
        settings: ChaosSettings,
        cluster: BrokerCluster,
        worker: WorkerCommand,
        group: str,
        topics: Sequence[str],
        privileges: Sequence[Privilege],
        say: Callable[[str], None],
        registry: RegistryServer | None = None,
    ) -> None:
        """`topics`: those that the worker reads. `say` gets a line for each moment of faults."""
        self.settings = settings
        self.started = time.time()
        self.seconds: dict[str, float] = {}  # of each phase
        self.topics, self.worker, self.group = topics, worker, group
        self.exit_code = 0  # of the worker, which is asked to end
        self.servers = cluster.bootstrap_servers
        self.isolation: IsolationLevel = "read_committed" if settings.delivery == "exactly_once" else "read_uncommitted"
        self._say = say
        self.scene = Scene(
            cluster,
            worker,
            worker.folder,
            privileges,
            settings.outage_s,
            settings.leaderless_s,
            self.num_acknowledged,
            registry,
        )
        self.faults = Faults(self.scene)
        self.watch = CommitWatch(self.servers, group, topics)

    @abstractmethod
    def prepare(self) -> None:
        """Create topics and what else the worker needs. Called once, before all else. Blocks."""

    @abstractmethod
    async def load(self, is_over: asyncio.Event) -> None:
        """Send until `is_over`. Returns when every record is acknowledged or failed."""

    @abstractmethod
    def num_acknowledged(self) -> int:
        """Records of the load that brokers have acknowledged so far."""

    @abstractmethod
    def judge(self) -> Verdict:
        """Check every record. Called when the worker has ended. Blocks."""

    def bugs(self) -> Iterable[dict[str, Any]]:
        """Events of the worker's log that tell of a bug, each once."""
        return {str(event): event for part in _BUGS for event in self.worker.events(part)}.values()

    async def run(self) -> Verdict:
        """Run, and judge every record."""
        await asyncio.to_thread(self.prepare)
        is_over = asyncio.Event()
        keeping = asyncio.create_task(self.worker.run())
        load = asyncio.create_task(self.load(is_over))
        try:
            async with asyncio.timeout(_START_S):
                while not self.scene.num_assignments():  # noqa: ASYNC110 — a log has no event to wait for
                    await asyncio.sleep(0.2)
            with self._timed("load"):
                await self._inject(load)
                is_over.set()
                await asyncio.wait_for(load, _LOAD_ENDS_S)
            with self._timed("rest"):
                await self._come_to_rest()
        finally:
            for task in (keeping, load):
                task.cancel()
            await asyncio.gather(keeping, load, return_exceptions=True)
            self.exit_code = await self.worker.stop(DRAIN_S + 20)
        with self._timed("judgement"):
            return await asyncio.to_thread(self.judge)

    async def _inject(self, load: asyncio.Task[None]) -> None:
        """Inject faults until the load may end."""
        settings = self.settings
        rng, until = random.Random(settings.seed), time.monotonic() + settings.minutes * 60
        coming = moments(settings.injected, settings.most_at_once, random.Random(settings.seed))
        num_moments = 0
        while not self._is_enough(num_moments, until):
            if load.done():
                await load  # it raises
                raise RuntimeError("The load ended before its time. This is a bug.")
            await self._wait(rng.uniform(*settings.gap_s), num_moments, until)
            kinds = () if self._is_enough(num_moments, until) else self._next_kinds(coming, num_moments)
            if len(kinds) == 1:
                await self._until_steady(until)
            if kinds:
                self._say(", ".join(kinds))
                await self.faults.inject(kinds, rng)
                num_moments += 1
            if len(kinds) == 1 and KILLS.issuperset(kinds):
                await self._until_recovered()

    def _next_kinds(self, coming: Iterator[Sequence[str]], num_moments: int) -> Sequence[str]:
        """The next moment of faults. After the first round, each alone, those that never came have every other one."""
        is_turn = num_moments >= len(self.settings.injected) and num_moments % 2 == 0
        missing = self.faults.missing(self.settings.injected) if is_turn else []
        return missing[:1] or next(coming, ())

    async def _wait(self, seconds: float, num_moments: int, until: float) -> None:
        """Wait, but not longer than the load lasts."""
        resume = time.monotonic() + seconds
        while time.monotonic() < resume and not self._is_enough(num_moments, until):  # noqa: ASYNC110 — bounds of time
            await asyncio.sleep(min(0.5, seconds))

    def _is_enough(self, num_moments: int, until: float) -> bool:
        """Whether the load may end."""
        wanted, num_sent = self.settings.requests, self.num_acknowledged()
        is_enough = time.monotonic() >= until or (wanted is not None and num_sent >= wanted)
        return is_enough and num_moments >= self.settings.min_moments

    async def _until_steady(self, until: float) -> None:
        """Wait until the worker is two seconds of the load behind, or less."""
        enough = min(until, time.monotonic() + _STEADY_S)
        most = 2 * self.settings.rate + 50 * self.settings.partitions
        while time.monotonic() < enough and await self.watch.num_behind() > most:  # noqa: ASYNC110 — brokers are asked
            await asyncio.sleep(1)

    async def _until_recovered(self) -> None:
        """Wait until online requests are answered soon again, so that the next fault does not cut a recovery off.

        The wait has a bound, which is beyond the promise.
        """
        enough = time.monotonic() + 2 * MOST_RECOVERY_S
        while time.monotonic() < enough:
            await asyncio.sleep(SLOW_S)  # until partitions without an owner have requests
            if await self.watch.keeps_up(self.topics[0], SLOW_S):
                return

    async def _come_to_rest(self) -> None:
        """Wait until all is committed. The checks tell what is not.

        It is seen twice: a leader that has just started may name the end that it stored seconds before it was killed.
        """
        enough, num_seen = time.monotonic() + _REST_S, 0
        while time.monotonic() < enough and num_seen < 2:
            num_seen = 0 if await self.watch.num_behind() else num_seen + 1
            await asyncio.sleep(_LOOK_AGAIN_S if num_seen else 1)

    @contextlib.contextmanager
    def _timed(self, phase: str) -> Any:
        started = time.monotonic()
        yield
        self.seconds[phase] = round(time.monotonic() - started, 1)
