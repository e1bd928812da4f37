"""One run: a cluster, a worker, a load and seeded faults; then the worker comes to rest, and every record is judged."""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # without saying so

from penstock.ops.bench.load.records import read_topics, topic_ids
from penstock.ops.chaos.chaos_settings import ChaosSettings
from penstock.ops.chaos.faults import access
from penstock.ops.chaos.faults.faults import Faults, moments
from penstock.ops.chaos.faults.scene import CACHE, Scene
from penstock.ops.chaos.faults.topic_faults import COPIED
from penstock.ops.chaos.fleet.faulty_engine import POISON, vector
from penstock.ops.chaos.fleet.worker_command import WorkerCommand
from penstock.ops.chaos.load.asked import Ids
from penstock.ops.chaos.load.calls import CALL_S, REPLIES, Calls
from penstock.ops.chaos.load.raw_load import RAW_REPLIES, RawLoad
from penstock.ops.chaos.verdict.commits import CommitWatch, read_commits
from penstock.ops.chaos.verdict.fault_effects import KILLS, MOST_RECOVERY_S, SLOW_S
from penstock.ops.chaos.verdict.judge import Judge
from penstock.ops.chaos.verdict.refusals import is_denial, refusals
from penstock.ops.kafka import BrokerCluster
from penstock.producer.keywords import IsolationLevel
from penstock.producer.wire.topics import bulk_topic, dead_letter_topic, request_topic

_NAME = "chaos"
_GROUP = f"penstock.{_NAME}"
_START_S = 120.0
_DRAIN_S = 10.0
_REST_S = 180.0  # after the last fault: all is answered and committed
_LOOK_AGAIN_S = 5.0  # by then a leader has asked its followers how far they are
_STEADY_S = 60.0  # at most, before a fault that comes alone: its effect is measured
_BUGS, _SHOWN_CHARS = ("This is a bug", "Traceback"), 600


class ChaosRun:
    """Makes one run. What it found is in its parts, for the report."""

    def __init__(
        self, settings: ChaosSettings, cluster: BrokerCluster, folder: Path, say: Callable[[str], None]
    ) -> None:
        """`folder` is empty, and the worker's. `say` gets a line for each moment of faults."""
        self.settings = settings
        self.started = time.time()
        self.seconds: dict[str, float] = {}  # of each phase
        self.topics = [request_topic(_NAME), bulk_topic(request_topic(_NAME))]
        self._exit_code = 0
        self._say = say
        self._servers = servers = cluster.bootstrap_servers
        self._letters = [*map(dead_letter_topic, self.topics)]
        self._isolation: IsolationLevel = (
            "read_committed" if settings.delivery == "exactly_once" else "read_uncommitted"
        )
        self.calls = Calls(servers, _NAME, self._isolation, settings.callers, settings.seed)
        self.raw = RawLoad(servers, _NAME, self.topics[0], settings.rate, settings.seed)
        self.worker = WorkerCommand(folder, settings.seed, self._options(folder, cluster.address("CLEAR")))
        self._scene = Scene(
            cluster,
            self.worker,
            folder,
            access.privileges(_GROUP, self.topics, self._letters, [REPLIES, RAW_REPLIES]),
            settings.outage_s,
            settings.leaderless_s,
            lambda: len(self.raw.acknowledged),
        )
        self.faults = Faults(self._scene)
        self._watch = CommitWatch(servers, _GROUP, self.topics)

    async def run(self) -> Judge:
        """Run, and judge every record."""
        self._create_topics()
        await asyncio.to_thread(access.allow, self._servers, self._scene.privileges)
        is_over = asyncio.Event()
        keeping = asyncio.create_task(self.worker.run())
        load = asyncio.create_task(self._load(is_over))
        try:
            async with asyncio.timeout(_START_S):
                while not self._scene.num_assignments():  # noqa: ASYNC110 — a log has no event to wait for
                    await asyncio.sleep(0.2)
            with self._timed("load"):
                await self._inject(load)
                is_over.set()
                await asyncio.wait_for(load, 2 * CALL_S)
            with self._timed("rest"):
                await self._come_to_rest()
        finally:
            for task in (keeping, load):
                task.cancel()
            await asyncio.gather(keeping, load, return_exceptions=True)
            self._exit_code = await self.worker.stop(_DRAIN_S + 20)
        with self._timed("judgement"):
            return await self._judge()

    async def _load(self, is_over: asyncio.Event) -> None:
        """Return when every call has ended and every record is acknowledged or failed."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.calls.run(is_over))
            group.create_task(self.raw.run(is_over))

    def _options(self, folder: Path, servers: str) -> list[str]:
        settings = self.settings
        values = {
            "model": "null",
            "served-name": _NAME,
            "bootstrap-servers": servers,
            "processes": settings.processes,
            "partitions": settings.partitions,
            "drain-s": _DRAIN_S,
            "cache-path": folder / CACHE,
            "cache-max-bytes": 1 << 20,
            "cost-path": folder / "costs.sqlite",
            "delivery": settings.delivery,
            "log-format": "json",
            **access.OPTIONS,
        }
        return [part for name, value in values.items() for part in (f"--{name}", str(value))]

    def _create_topics(self) -> None:
        """Answers get the broker's time, because clocks of members step."""
        config = {"message.timestamp.type": "LogAppendTime"}
        answers = [NewTopic(name, 4, 3, config=config) for name in (REPLIES, RAW_REPLIES, *self._letters)]
        requests = [NewTopic(name, self.settings.partitions, 3) for name in self.topics]
        admin = AdminClient({"bootstrap.servers": self._servers})
        for created in admin.create_topics([*answers, *requests]).values():
            created.result()

    async def _inject(self, load: asyncio.Task[None]) -> None:
        """Inject faults until the load may end."""
        settings = self.settings
        rng, until = random.Random(settings.seed), time.monotonic() + settings.minutes * 60
        coming = moments(settings.kinds, settings.most_at_once, random.Random(settings.seed))
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
        is_turn = num_moments >= len(self.settings.kinds) and num_moments % 2 == 0
        missing = self.faults.missing(self.settings.kinds) if is_turn else []
        return missing[:1] or next(coming, ())

    async def _wait(self, seconds: float, num_moments: int, until: float) -> None:
        """Wait, but not longer than the load lasts."""
        resume = time.monotonic() + seconds
        while time.monotonic() < resume and not self._is_enough(num_moments, until):  # noqa: ASYNC110 — bounds of time
            await asyncio.sleep(min(0.5, seconds))

    def _is_enough(self, num_moments: int, until: float) -> bool:
        """Whether the load may end."""
        wanted, num_sent = self.settings.requests, len(self.raw.acknowledged)
        is_enough = time.monotonic() >= until or (wanted is not None and num_sent >= wanted)
        return is_enough and num_moments >= self.settings.min_moments

    async def _until_steady(self, until: float) -> None:
        """Wait until the worker is two seconds of the load behind, or less."""
        enough = min(until, time.monotonic() + _STEADY_S)
        most = 2 * self.settings.rate + 50 * self.settings.partitions
        while time.monotonic() < enough and await self._watch.num_behind() > most:  # noqa: ASYNC110 — brokers are asked
            await asyncio.sleep(1)

    async def _until_recovered(self) -> None:
        """Wait until online requests are answered soon again, so that the next fault does not cut a recovery off.

        The wait has a bound, which is beyond the promise.
        """
        enough = time.monotonic() + 2 * MOST_RECOVERY_S
        while time.monotonic() < enough:
            await asyncio.sleep(SLOW_S)  # until partitions without an owner have requests
            if await self._watch.keeps_up(self.topics[0], SLOW_S):
                return

    async def _come_to_rest(self) -> None:
        """Wait until all is committed. The checks tell what is not.

        It is seen twice: a leader that has just started may name the end that it stored seconds before it was killed.
        """
        enough, num_seen = time.monotonic() + _REST_S, 0
        while time.monotonic() < enough and num_seen < 2:
            num_seen = 0 if await self._watch.num_behind() else num_seen + 1
            await asyncio.sleep(_LOOK_AGAIN_S if num_seen else 1)

    async def _judge(self) -> Judge:
        servers, injected = self._servers, self.faults.injected
        excuses = [*refusals(injected, self.settings.delivery)]
        judge = Judge(POISON, _expected, excuses)
        judge.requests(read_topics(servers, self.topics), topic_ids(servers, self.topics))
        judge.check_sent(self.raw.acknowledged)
        judge.check_results(self.calls.results)
        judge.complain("wrong_error_of_a_call", self.calls.wrong_errors)
        for record in read_topics(servers, [REPLIES, RAW_REPLIES], self._isolation):
            judge.reply(record, is_copy=COPIED in dict(record.headers))
        for record in read_topics(servers, self._letters, self._isolation):
            judge.letter(record)
        judge.check_outcomes(may_repeat=self.settings.delivery == "at_least_once")
        committed, ends = self._watch.committed_and_ends()
        try:
            commits = await asyncio.to_thread(read_commits, servers, _GROUP, self._isolation)
            judge.check_commits(commits)
            last = {commit.source: commit.offset for commit in commits}
            unseen = [f"{source} at {offset}" for source, offset in committed.items() if last.get(source) != offset]
            judge.complain("commits_unreadable", unseen)
        except (KafkaException, OSError, ValueError) as error:
            judge.complain("commits_unreadable", [repr(error)])
        judge.check_all_committed(committed, ends)
        judge.complain("bad_exit", [f"code {self._exit_code} on SIGTERM"] if self._exit_code else [])
        found = {str(event): event for part in _BUGS for event in self.worker.events(part)}
        bugs = [event for event in found.values() if not is_denial(event, injected)]
        told = [f"{bug['event']}: {bug.get('exception', '')[-_SHOWN_CHARS:]}" for bug in bugs]
        judge.complain("bug_in_the_log", told)
        return judge

    @contextlib.contextmanager
    def _timed(self, phase: str) -> Any:
        started = time.monotonic()
        yield
        self.seconds[phase] = round(time.monotonic() - started, 1)


def _expected(ids: Ids) -> bytes:
    return vector(np.frombuffer(ids, "<i4")).astype("<f4").tobytes()
