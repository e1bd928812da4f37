"""One port for all members, each of which has its own: it scrapes theirs for metrics, and asks them for probes.

Samples are labelled with the worker.
"""

import http.client
import json
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from penstock.worker.settings import WorkerSettings
from penstock.worker.supervision.member_slot import RESTART_REASONS
from penstock.worker.telemetry.metric_definitions import METRICS
from penstock.worker.telemetry.status_server import Status

_SCRAPE_S = 1.0  # a member that does not answer is missing from a scrape, and does not delay it
_ANSWER_S = 8.0  # to a probe: longer than a member's own answer takes, its engine's probe included
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # members are on this machine


class MemberMetrics(Collector):
    """Collects from the members' ports and from the supervisor. Runs on the threads of the metrics server."""

    def __init__(self, ports: Callable[[], Mapping[int, int]], states: Callable[[], Mapping[str, int]]) -> None:
        """`ports`: worker -> port on the loopback interface. `states`: how many members are in each state."""
        self.registry = CollectorRegistry(auto_describe=False)
        self._ports = ports
        self._states = states
        self._restarts: Counter[tuple[str, str]] = Counter()  # (worker, reason)
        self.registry.register(self)

    def add_worker(self, worker: int) -> None:
        """Show a member's restarts from 0 on. Any number of times."""
        for reason in RESTART_REASONS:
            self._restarts.setdefault((str(worker), reason), 0)

    def count_restart(self, worker: int, reason: str) -> None:
        """Count a member that is started again."""
        self._restarts[str(worker), reason] += 1

    def describe(self) -> list[Metric]:
        """Nothing: names are known when the members are scraped."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The families of all members, and the supervisor's own."""
        ports = dict(self._ports())
        families: dict[str, Metric] = {}
        with ThreadPoolExecutor(max(1, len(ports)), thread_name_prefix="scrape") as scrapes:
            for worker, found in zip(ports, scrapes.map(_scrape, ports.values()), strict=True):
                _merge(families, found, str(worker))
        yield from families.values()
        one = METRICS["penstock_members"]
        members = GaugeMetricFamily(one.family, one.meaning, labels=one.labels)
        for state, count in self._states().items():
            members.add_metric([state], count)
        yield members
        one = METRICS["penstock_worker_restarts_total"]
        restarts = CounterMetricFamily(one.family, one.meaning, labels=one.labels)
        for labels, count in dict(self._restarts).items():
            restarts.add_metric(labels, count)
        yield restarts


def _scrape(port: int) -> list[Metric]:
    """A member's families; none if it does not answer with an exposition, as when it ends meanwhile."""
    try:
        with _OPENER.open(f"http://127.0.0.1:{port}/metrics", timeout=_SCRAPE_S) as answer:
            return list(text_string_to_metric_families(answer.read().decode()))
    except (OSError, http.client.HTTPException, ValueError):
        return []


def _merge(families: dict[str, Metric], found: list[Metric], worker: str) -> None:
    for family in found:
        merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
        merged.samples += [Sample(s.name, {"worker": worker, **s.labels}, s.value) for s in family.samples]


def members_status(
    settings: WorkerSettings,
    registry: CollectorRegistry,
    not_ready: Callable[[], str],
    ports: Callable[[], Mapping[int, int]],
) -> Status:
    """The answers of the supervisor's port. `ports`: worker -> the port that it serves on the loopback interface."""
    own = settings.model_dump(mode="json", include={"config", "metrics_host", "metrics_port"})
    return Status(registry, not_ready, lambda: _not_live(ports()), lambda: _config(ports(), own))


def _not_live(ports: Mapping[int, int]) -> str:
    """Which members say that they are not live, and why.

    A member that does not answer at all has ended or hangs: its supervisor replaces it.
    """
    with ThreadPoolExecutor(max(1, len(ports)), thread_name_prefix="probe") as probes:
        answers = list(probes.map(lambda port: _ask(port, "/livez"), ports.values()))
    faults = [(worker, str(said["reason"])) for worker, said in zip(ports, answers, strict=True) if "reason" in said]
    return "; ".join(f"worker {worker}: {reason}" for worker, reason in faults)


def _config(ports: Mapping[int, int], own: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings in force, as the first member that answers has them, and with `own`. Empty if none has loaded."""
    answers = (_ask(port, "/config") for port in ports.values())
    return next(({**said, **own} for said in answers if "reasons" in said), {})


def _ask(port: int, path: str) -> dict[str, Any]:
    """The JSON object of a member's answer; empty if there is none."""
    try:
        try:
            answer = _OPENER.open(f"http://127.0.0.1:{port}{path}", timeout=_ANSWER_S)
        except urllib.error.HTTPError as refusal:  # an answer too
            answer = refusal
        with answer:
            said = json.load(answer)
    except (OSError, ValueError, http.client.HTTPException):
        return {}
    return said if isinstance(said, dict) else {}
