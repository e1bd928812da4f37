"""One run with routes, in JSON and in Avro: every record comes out as it is owed, or is a dead letter."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # without saying so
from tokenizers import Tokenizer

from penstock.engine.types import Float32Array
from penstock.ops.bench.load.records import read_topics
from penstock.ops.chaos.chaos_settings import ChaosSettings
from penstock.ops.chaos.fault_run import DRAIN_S, FaultRun
from penstock.ops.chaos.fleet.faulty_engine import vector
from penstock.ops.chaos.fleet.worker_command import WorkerCommand
from penstock.ops.chaos.load.route_load import AVRO, JSON, RouteLoad
from penstock.ops.chaos.verdict.route_judge import RESULT, RouteJudge
from penstock.ops.demo.demo_model import model_directory
from penstock.ops.kafka import BrokerCluster, RegistryServer
from penstock.producer.wire.topics import dead_letter_topic

_GROUP = "chaos.routes"
_OUTPUTS = {topic: f"{topic}.enriched" for topic in (JSON, AVRO)}


class RoutesRun(FaultRun[RouteJudge]):
    """See `FaultRun`. The worker's engine is the faulty one, and its tokenizer that of the demo's checkpoint."""

    def __init__(
        self,
        settings: ChaosSettings,
        cluster: BrokerCluster,
        registry: RegistryServer,
        folder: Path,
        say: Callable[[str], None],
    ) -> None:
        """`folder` is empty, and the worker's."""
        self._registry = registry
        values = {
            "model": model_directory(),
            "served-name": "chaos",
            "device": "cpu",
            "bootstrap-servers": cluster.bootstrap_servers,
            "group-id": _GROUP,
            "schema-registry-url": registry.url,
            "processes": settings.processes,
            "drain-s": DRAIN_S,
            "cost-path": folder / "costs.sqlite",
            "delivery": settings.delivery,
            "log-format": "json",
        }
        options = [part for name, value in values.items() for part in (f"--{name}", str(value))]
        route = {"text": "text", "result_field": RESULT}
        routes = [
            {"input_topic": one, "output_topic": _OUTPUTS[one], "record_format": record_format, **route}
            for one, record_format in ((JSON, "json"), (AVRO, "avro"))
        ]
        worker = WorkerCommand(folder, settings.seed, options, {"PENSTOCK_ROUTES": json.dumps(routes)})
        privileges = [("GROUP", "READ", _GROUP), *[("TOPIC", "READ", topic) for topic in _OUTPUTS]]
        super().__init__(settings, cluster, worker, _GROUP, [*_OUTPUTS], privileges, say, registry)
        self.records = RouteLoad(self.servers, settings.partitions, settings.rate, settings.seed)

    def num_acknowledged(self) -> int:
        """See there."""
        return len(self.records.acknowledged)

    def prepare(self) -> None:
        """Create the topics, and register the schemas."""
        admin, partitions = AdminClient({"bootstrap.servers": self.servers}), self.settings.partitions
        letters = map(dead_letter_topic, _OUTPUTS)
        created = [NewTopic(name, partitions, 3) for name in (*_OUTPUTS, *_OUTPUTS.values(), *letters)]
        for done in admin.create_topics(created).values():
            done.result()
        self.records.register(self._registry.url)

    async def load(self, is_over: asyncio.Event) -> None:
        """See there."""
        await self.records.run(is_over)

    def judge(self) -> RouteJudge:
        """Check every record."""
        judge = RouteJudge(_OUTPUTS, _expected(), may_repeat=self.settings.delivery == "at_least_once")
        judge.inputs(read_topics(self.servers, self.topics), self.records.acknowledged)
        for record in read_topics(self.servers, [*_OUTPUTS.values()], self.isolation):
            judge.output(record)
        for record in read_topics(self.servers, [*map(dead_letter_topic, _OUTPUTS)], self.isolation):
            judge.letter(record)
        judge.check_outcomes(*self.watch.committed_and_ends())
        if self.exit_code:
            judge.complain("bad_exit", f"code {self.exit_code} on SIGTERM")
        for bug in self.bugs():
            judge.complain("bug_in_the_log", f"{bug['event']}: {bug.get('exception', '')[-600:]}")
        return judge


def _expected() -> Callable[[str], Float32Array]:
    """The result of a text. The tokenizer's own library makes the tokens."""
    tokenizer = Tokenizer.from_file(str(model_directory() / "tokenizer.json"))
    tokenizer.no_padding()
    return lambda text: vector(np.array(tokenizer.encode(text).ids, np.int32))
