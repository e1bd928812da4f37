"""Arguments and result of a load generator: plain data, JSON between processes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """One measured load, after `warm_up` requests that are not measured."""

    target: Literal["penstock", "plain"]  # our client, or bare aiokafka to the FastStream service
    bootstrap_servers: str
    model: str  # penstock: the served name
    payload: Literal["text", "ids"]  # Banking77 texts, or random sequences of 15 token ids, no two alike
    arrivals: Literal["closed", "bulk", "poisson"]
    num_requests: int  # sequences
    warm_up: int
    in_flight: int = 1  # closed: callers, each with one sequence at a time; bulk: callers, each with a list of texts
    rate_per_s: float = 0.0  # poisson
    batch_calls: bool = True  # penstock: calls of one turn of the event loop may share a record
    timeout_s: float = 120.0  # of a call; later, the request is unanswered
    watch: Mapping[str, int] = field(default_factory=dict)  # name -> pid of the processes to account for
    profile: str | None = None  # sample this process into that file, and send SIGUSR1 to the worker in `watch`


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Result of one load: percentiles of its latencies, processor time and memory."""

    num_requests: int
    failures: Mapping[str, int]  # kind of error -> how often
    wall_s: float  # from the first request's scheduled time to the last answer
    latency_ms: Mapping[str, float | None]  # p50, p95, p99, max over every request; None: never answered
    cpu_user_s: Mapping[str, float]  # process -> seconds in the measured time; "client" is the load generator
    cpu_system_s: Mapping[str, float]
    rss_bytes: Mapping[str, Sequence[int]]  # process -> samples, one every RSS_INTERVAL_S

    @property
    def requests_per_s(self) -> float:
        """Answered requests over the measured time."""
        return (self.num_requests - sum(self.failures.values())) / self.wall_s

    def cpu_us(self, process: str) -> float:
        """Processor microseconds a request."""
        return (self.cpu_user_s[process] + self.cpu_system_s[process]) / self.num_requests * 1e6


RSS_INTERVAL_S = 0.25


def percentiles_ms(latencies_s: Sequence[float]) -> dict[str, float | None]:
    """p50, p95, p99 and max. A request without an answer counts as infinitely late; None stands for infinity."""
    ordered = np.sort(np.asarray(latencies_s, np.float64))
    named = {"p50": 50, "p95": 95, "p99": 99, "max": 100}
    values = {name: float(np.percentile(ordered, percent, method="higher")) for name, percent in named.items()}
    return {name: value * 1e3 if math.isfinite(value) else None for name, value in values.items()}
