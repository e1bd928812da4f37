"""Members that serve their real metrics, a supervisor's port over them, and a clock that stands still."""

import threading
from collections.abc import Mapping
from typing import Self
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from penstock.engine.types import ModelInfo
from penstock.scheduler import CostTable, LaneDriver, LearnedCost, PackedCost, Scheduler, SchedulerSettings
from penstock.worker.batching.batch import BatchStats, Sums
from penstock.worker.batching.encoder_model import EncoderLoad
from penstock.worker.batching.token_budget import TokenBudget
from penstock.worker.kafka.backpressure import Backpressure
from penstock.worker.kafka.progress.offsets import OffsetTracker
from penstock.worker.requests.ledger import RecordLedger
from penstock.worker.supervision.members_port import MemberMetrics
from penstock.worker.telemetry.metrics import Metrics


class _Silent(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


class Port:
    """A metrics port on the loopback interface."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._server = make_server("127.0.0.1", 0, make_wsgi_app(registry), handler_class=_Silent)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.number: int = self._server.server_port
        self.address = f"http://127.0.0.1:{self.number}/metrics"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Member:
    """A worker's metrics, and what it does to them."""

    def __init__(self, model: str = "tiny") -> None:
        info = ModelInfo(model, "r1", "float32", "cpu", 100, 8, frozenset({"embed"}), 4, ())
        cost = LearnedCost(CostTable(PackedCost(0.0, 0.0, 1.0, 0.0)))
        held = Backpressure(8)
        ledger = RecordLedger(held, OffsetTracker(), {"bulk"})
        scheduler = Scheduler(SchedulerSettings(1.0, 8, 1000, None), cost)
        load = EncoderLoad(LaneDriver(scheduler, 1), cost, TokenBudget(1000, lambda: 0.0))
        self.metrics = Metrics(info, load, held, ledger)
        self.lag: dict[tuple[str, ...], float] = {}
        self.dead_letters: dict[tuple[str, ...], float] = {("kept",): 0}
        self.metrics.show("penstock_consumer_lag_records", lambda: self.lag)
        self.metrics.show("penstock_dead_letters_total", lambda: self.dead_letters)
        self.port = Port(self.metrics.registry)

    def answer(self, requests: int, seconds: float = 0.004, *, cached: int = 0, tokens: int = 10) -> None:
        """Online requests of one text each, which ran in one batch unless they were cached."""
        self.metrics.count("ok", requests)
        self.metrics.latency.observe(seconds, requests, bulk=False)
        self.metrics.from_cache.inc(cached)
        if (count := requests - cached) > 0:
            sums = Sums(count * tokens, count * tokens**2, tokens, count)
            self.metrics.observe_batch(BatchStats("hungry", "fifo", 0.0, sums, 0.001, 0.001))

    def enrich(self, topic: str, records: int, age_s: float, *, lag: int = 0, failed: int = 0) -> None:
        """Records of a route."""
        self.metrics.count_route(topic, "ok", records)
        self.metrics.count_route(topic, "too_long", failed)
        self.metrics.show_route_age(topic, age_s)
        self.lag[topic, "0"] = lag

    def reject(self, requests: int, code: str = "overloaded") -> None:
        self.metrics.count(code, requests)


class Fleet:
    """Members behind a supervisor's port."""

    def __init__(self, *members: Member) -> None:
        self.members = dict(enumerate(members))
        self.states: Mapping[str, int] = {"serving": len(members), "restarting": 0}
        self.collector = MemberMetrics(self._ports, lambda: self.states)
        for number in self.members:
            self.collector.add_worker(number)
        self.port = Port(self.collector.registry)
        self._all = list(members)

    def _ports(self) -> dict[int, int]:
        return {number: one.port.number for number, one in self.members.items()}

    def remove(self, number: int) -> None:
        """A member dies."""
        del self.members[number]

    def add(self, number: int, member: Member) -> None:
        """Another process in its place."""
        self.members[number] = member
        self._all.append(member)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for port in (self.port, *[one.port for one in self._all]):
            port.close()


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s
