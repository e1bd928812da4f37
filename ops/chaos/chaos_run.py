"""One run with requests: calls of clients and plain producers, every kind of fault, and each request is judged."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # without saying so

from penstock.ops.bench.load.records import read_topics, topic_ids
from penstock.ops.chaos.chaos_settings import ChaosSettings
from penstock.ops.chaos.fault_run import DRAIN_S, FaultRun
from penstock.ops.chaos.faults import access
from penstock.ops.chaos.faults.scene import CACHE
from penstock.ops.chaos.faults.topic_faults import COPIED
from penstock.ops.chaos.fleet.faulty_engine import POISON, vector
from penstock.ops.chaos.fleet.worker_command import WorkerCommand
from penstock.ops.chaos.load.asked import Ids
from penstock.ops.chaos.load.calls import REPLIES, Calls
from penstock.ops.chaos.load.raw_load import RAW_REPLIES, RawLoad
from penstock.ops.chaos.verdict.commits import read_commits
from penstock.ops.chaos.verdict.judge import Judge
from penstock.ops.chaos.verdict.refusals import is_denial, refusals
from penstock.ops.kafka import BrokerCluster
from penstock.producer.wire.topics import bulk_topic, dead_letter_topic, request_topic

_NAME = "chaos"
_GROUP = f"penstock.{_NAME}"
_SHOWN_CHARS = 600


class ChaosRun(FaultRun[Judge]):
    """See `FaultRun`."""

    def __init__(
        self, settings: ChaosSettings, cluster: BrokerCluster, folder: Path, say: Callable[[str], None]
    ) -> None:
        """`folder` is empty, and the worker's."""
        topics = [request_topic(_NAME), bulk_topic(request_topic(_NAME))]
        self._letters = [*map(dead_letter_topic, topics)]
        privileges = access.privileges(_GROUP, topics, self._letters, [REPLIES, RAW_REPLIES])
        worker = WorkerCommand(folder, settings.seed, _options(settings, folder, cluster.address("CLEAR")))
        super().__init__(settings, cluster, worker, _GROUP, topics, privileges, say)
        self.calls = Calls(self.servers, _NAME, self.isolation, settings.callers, settings.seed)
        self.raw = RawLoad(self.servers, _NAME, topics[0], settings.rate, settings.seed)

    def num_acknowledged(self) -> int:
        """Of the plain producers."""
        return len(self.raw.acknowledged)

    async def load(self, is_over: asyncio.Event) -> None:
        """Return when every call has ended and every record is acknowledged or failed."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.calls.run(is_over))
            group.create_task(self.raw.run(is_over))

    def prepare(self) -> None:
        """Answers get the broker's time, because clocks of members step."""
        config = {"message.timestamp.type": "LogAppendTime"}
        answers = [NewTopic(name, 4, 3, config=config) for name in (REPLIES, RAW_REPLIES, *self._letters)]
        requests = [NewTopic(name, self.settings.partitions, 3) for name in self.topics]
        admin = AdminClient({"bootstrap.servers": self.servers})
        for created in admin.create_topics([*answers, *requests]).values():
            created.result()
        access.allow(self.servers, self.scene.privileges)

    def judge(self) -> Judge:
        """Check every record."""
        servers, injected = self.servers, self.faults.injected
        excuses = [*refusals(injected, self.settings.delivery)]
        judge = Judge(POISON, _expected, excuses)
        judge.requests(read_topics(servers, self.topics), topic_ids(servers, self.topics))
        judge.check_sent(self.raw.acknowledged)
        judge.check_results(self.calls.results)
        judge.complain("wrong_error_of_a_call", self.calls.wrong_errors)
        for record in read_topics(servers, [REPLIES, RAW_REPLIES], self.isolation):
            judge.reply(record, is_copy=COPIED in dict(record.headers))
        for record in read_topics(servers, self._letters, self.isolation):
            judge.letter(record)
        judge.check_outcomes(may_repeat=self.settings.delivery == "at_least_once")
        committed, ends = self.watch.committed_and_ends()
        try:
            commits = read_commits(servers, self.group, self.isolation)
            judge.check_commits(commits)
            last = {commit.source: commit.offset for commit in commits}
            unseen = [f"{source} at {offset}" for source, offset in committed.items() if last.get(source) != offset]
            judge.complain("commits_unreadable", unseen)
        except (KafkaException, OSError, ValueError) as error:
            judge.complain("commits_unreadable", [repr(error)])
        judge.check_all_committed(committed, ends)
        judge.complain("bad_exit", [f"code {self.exit_code} on SIGTERM"] if self.exit_code else [])
        bugs = [event for event in self.bugs() if not is_denial(event, injected)]
        told = [f"{bug['event']}: {bug.get('exception', '')[-_SHOWN_CHARS:]}" for bug in bugs]
        judge.complain("bug_in_the_log", told)
        return judge


def _options(settings: ChaosSettings, folder: Path, servers: str) -> list[str]:
    values = {
        "model": "null",
        "served-name": _NAME,
        "bootstrap-servers": servers,
        "processes": settings.processes,
        "partitions": settings.partitions,
        "drain-s": DRAIN_S,
        "cache-path": folder / CACHE,
        "cache-max-bytes": 1 << 20,
        "cost-path": folder / "costs.sqlite",
        "delivery": settings.delivery,
        "log-format": "json",
        **access.OPTIONS,
    }
    return [part for name, value in values.items() for part in (f"--{name}", str(value))]


def _expected(ids: Ids) -> bytes:
    return vector(np.frombuffer(ids, "<i4")).astype("<f4").tobytes()
