"""One run: a cluster, a worker, a load and seeded faults; then the worker comes to rest, and every record is judged."""

import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from penstock.engine import PackedBatch, TaskOptions, load_engine
from penstock.engine.types import Engine, Float32Array
from penstock.ops.chaos import access
from penstock.ops.chaos.commit_watch import CommitWatch, committed_offsets, connected, end_offsets
from penstock.ops.chaos.faults import COPIED, KINDS, Faults
from penstock.ops.chaos.faulty_engine import EchoEngine, poison
from penstock.ops.chaos.judge import Ids, Judge
from penstock.ops.chaos.read_topics import read_topics
from penstock.ops.chaos.traffic import RAW_REPLIES, REPLIES, Traffic
from penstock.ops.chaos.worker_command import WorkerCommand
from penstock.ops.kafka import BrokerCluster
from penstock.producer.wire.topics import bulk_topic, dead_letter_topic, request_topic

_NAME = "chaos"
_GROUP = f"penstock.{_NAME}"
_SLOW_S = 2.0  # an answer that takes longer was held up by a fault
_DRAIN_S = 10.0
_REST_S = 120.0  # after the last fault: all is answered and committed
_BATCH = 256


@dataclass(frozen=True, slots=True)
class ChaosSettings:
    """Options of a run. Equal settings inject the same faults and send the same requests."""

    seed: int = 1
    minutes: float = 10.0
    processes: int = 2
    rate: float = 200.0  # raw records a second
    callers: int = 8
    partitions: int = 6
    kinds: Sequence[str] = KINDS
    gap_s: tuple[float, float] = (4.0, 10.0)  # between two faults
    outage_s: float = 20.0
    delivery: Literal["at_least_once", "exactly_once"] = "at_least_once"
    model: Path | None = None  # None: an engine whose results identify their sequences


def run_chaos(settings: ChaosSettings, say: Callable[[str], None]) -> dict[str, Any]:
    """Run, and return the report; `report["violations"]` is empty if all promises were kept. Blocks."""
    config = {"num.network.threads": "2", "num.io.threads": "4", **access.BROKER_CONFIG}
    with (
        tempfile.TemporaryDirectory(prefix="penstock-chaos-") as folder,
        BrokerCluster(num_partitions=settings.partitions, config=config, listeners=access.LISTENERS) as cluster,
    ):
        return asyncio.run(_Run(settings, cluster, Path(folder), say).run())


class _Run:
    def __init__(
        self, settings: ChaosSettings, cluster: BrokerCluster, folder: Path, say: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._say = say
        self._servers = cluster.bootstrap_servers
        self._requests = [request_topic(_NAME), bulk_topic(request_topic(_NAME))]
        self._letters = [*map(dead_letter_topic, self._requests)]
        self._engine = EchoEngine(_NAME) if settings.model is None else load_engine(str(settings.model), device="cpu")
        info = self._engine.info
        options = self._options(folder, cluster.address("CLEAR"))
        self._worker = WorkerCommand(folder, settings.seed, options)
        self._privileges = access.privileges(_GROUP, self._requests, self._letters, [REPLIES, RAW_REPLIES])
        self._faults = Faults(cluster, self._worker, folder, self._privileges, settings.outage_s)
        self._isolation = "read_committed" if settings.delivery == "exactly_once" else "read_uncommitted"
        self._traffic = Traffic(
            *(self._servers, _NAME, self._requests[0], self._isolation),
            vocab_size=info.vocab_size,
            rate=settings.rate,
            seed=settings.seed,
        )
        self._watch = CommitWatch(self._servers, _GROUP, [REPLIES, RAW_REPLIES, *self._letters])
        self._judge = Judge(poison(info), lambda sequences: direct(self._engine, sequences))

    def _options(self, folder: Path, servers: str) -> list[str]:
        settings = self._settings
        values = {
            "model": "null" if settings.model is None else settings.model,
            "served-name": _NAME,
            "bootstrap-servers": servers,
            "processes": settings.processes,
            "partitions": settings.partitions,
            "drain-s": _DRAIN_S,
            "cache-path": folder / "cache.sqlite",
            "cache-max-bytes": 1 << 20,
            "cost-path": folder / "costs.sqlite",
            "delivery": settings.delivery,
            "log-format": "json",
            **access.OPTIONS,
        }
        if settings.model is not None:
            values |= {"dtype": "float32", "device": "cpu"}
        return [part for name, value in values.items() for part in (f"--{name}", str(value))]

    async def run(self) -> dict[str, Any]:
        started = time.monotonic()
        await self._create_topics()
        await asyncio.to_thread(access.allow, self._servers, self._privileges)
        keeping = asyncio.create_task(self._worker.run())
        watching = asyncio.create_task(self._watch.run())
        load = asyncio.create_task(self._traffic.run(self._settings.callers))
        try:
            await self._until(lambda: bool(self._worker.events("partitions_assigned")), 60)
            await self._inject_for(self._settings.minutes * 60, load)
            self._traffic.is_over = True
            await asyncio.wait_for(load, _REST_S)
            rest_s = await self._come_to_rest()
        finally:
            for task in (keeping, watching, load):
                task.cancel()
            await asyncio.gather(keeping, watching, load, return_exceptions=True)
            exit_code = await self._worker.stop(_DRAIN_S + 20)
        await self._check(exit_code)
        return self._report(time.monotonic() - started, rest_s, exit_code)

    async def _create_topics(self) -> None:
        """Replies get the broker's time, because clocks of members step."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self._servers)
        await admin.start()
        try:
            config = {"message.timestamp.type": "LogAppendTime"}
            replies = [NewTopic(name, 4, 3, topic_configs=config) for name in (REPLIES, RAW_REPLIES)]
            requests = [NewTopic(name, self._settings.partitions, 3) for name in self._requests]
            await admin.create_topics([*replies, *requests])
        finally:
            await admin.close()

    async def _inject_for(self, seconds: float, load: asyncio.Task[None]) -> None:
        """Inject faults, one after another: each kind once, in random order, before any comes again."""
        rng, until = random.Random(self._settings.seed), time.monotonic() + seconds
        waiting: list[str] = []
        while time.monotonic() < until and not load.done():
            await asyncio.sleep(min(rng.uniform(*self._settings.gap_s), max(0.0, until - time.monotonic())))
            if time.monotonic() >= until or not self._settings.kinds:
                continue
            if not waiting:
                waiting = rng.sample(list(self._settings.kinds), len(self._settings.kinds))
            kind = waiting.pop()
            self._say(f"{kind}")
            await self._faults.inject(kind, random.Random(rng.random()))
        if load.done():
            await load  # it raises
            raise RuntimeError("The load ended before its time. This is a bug.")

    async def _come_to_rest(self) -> float:
        """Wait until all is committed; return the seconds. The checks tell what is not."""
        started = time.monotonic()

        async def is_at_rest() -> bool:
            committed, ends = await self._ends()
            return all(committed.get(source, 0) == end for source, end in ends.items() if end)

        while time.monotonic() < started + _REST_S and not await is_at_rest():  # noqa: ASYNC110 — brokers are asked
            await asyncio.sleep(1)
        return time.monotonic() - started

    async def _ends(self) -> tuple[dict[Any, int], dict[Any, int]]:
        committed = await committed_offsets(self._servers, _GROUP)
        async with connected(self._servers) as consumer:
            return committed, await end_offsets(consumer, self._requests)

    async def _check(self, exit_code: int) -> None:
        judge, sent = self._judge, self._traffic.sent
        judge.requests([record async for record in read_topics(self._servers, self._requests)])
        judge.check_sent(sent.acknowledged)
        judge.check_results(sent.results)
        judge.complain("wrong_error_of_a_call", sent.wrong_errors)
        async for record in read_topics(self._servers, [REPLIES, RAW_REPLIES], self._isolation):
            judge.reply(record, is_copy=COPIED in dict(record.headers))
        async for record in read_topics(self._servers, self._letters, self._isolation):
            judge.letter(record)
        judge.check_outcomes(may_repeat=self._settings.delivery == "at_least_once")
        judge.check_commits((look.committed, look.ends) for look in self._watch.looks)
        judge.check_all_committed(*await self._ends())
        judge.complain("bad_exit", [f"code {exit_code} on SIGTERM"] if exit_code else [])
        bugs = [e["event"] for e in self._worker.all_events() if "This is a bug" in str(e) or "Traceback" in str(e)]
        judge.complain("bug_in_the_log", bugs)

    def _report(self, seconds: float, rest_s: float, exit_code: int) -> dict[str, Any]:
        judge, sent, injected = self._judge, self._traffic.sent, self._faults.injected
        nexts = [fault.started for fault in injected[1:]] + [time.time()]
        recoveries: dict[str, list[float]] = {}
        for fault, until in zip(injected, nexts, strict=True):
            recoveries.setdefault(fault.kind, []).append(round(judge.recovery_s(fault.started, until, _SLOW_S), 1))
        answers = max(1, judge.counts["replies"] - judge.counts["duplicates"])
        return {
            "settings": asdict(self._settings) | {"model": self._engine.info.name},
            "seconds": round(seconds, 1),
            "counts": dict(sorted(judge.counts.items())),
            "raw_duplicate_share": judge.counts["duplicates"] / answers,
            "unacknowledged_raw_requests": sent.unacknowledged,
            "call_errors": dict(sent.call_errors),
            "faults": dict(Counter(fault.kind for fault in injected)),
            "faults_not_injected": [f"{fault.kind}: {fault.error}" for fault in injected if fault.error],
            "recovery_s": recoveries,
            "rest_s": round(rest_s, 1),
            "supervisors_ended": self._worker.exits,
            "members_ended": len(self._worker.events("member_exited")),
            "violations": dict(judge.violations),
            "examples": judge.examples,
        }

    async def _until(self, is_so: Callable[[], bool], timeout_s: float) -> None:
        async with asyncio.timeout(timeout_s):
            while not is_so():  # noqa: ASYNC110 — a log has no event to wait for
                await asyncio.sleep(0.2)


def direct(engine: Engine, sequences: Sequence[Ids]) -> Mapping[Ids, Float32Array]:
    """The engine's answers without Kafka."""
    rows: dict[Ids, Float32Array] = {}
    by_length = sorted(sequences, key=len)
    for start in range(0, len(by_length), _BATCH):
        chosen = by_length[start : start + _BATCH]
        arrays = [np.array(one, np.int32) for one in chosen]
        output = engine.run(PackedBatch.of(arrays, [TaskOptions("embed")] * len(chosen)))
        rows |= dict(zip(chosen, output.rows, strict=True))
    return rows
