"""A member of two is killed with SIGKILL, twice: what is answered twice or never, and how long partitions wait."""

import asyncio
import dataclasses
import os
import signal
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

from penstock.ops.bench.common.comparison import Grid, PartResult
from penstock.ops.bench.common.processes import ProcessFailed, run_once
from penstock.ops.bench.common.setup import Setup
from penstock.ops.bench.delivery.call_load import CallResult, CallSpec
from penstock.ops.bench.delivery.delivery_tables import CRASH_FIGURES, DEFAULT, FASTSTREAM, PENSTOCK
from penstock.ops.bench.delivery.faststream_member import ACK, ACK_FIRST, SUBSCRIBER
from penstock.ops.bench.delivery.faststream_members import FaststreamMembers
from penstock.ops.bench.delivery.stand_in import SEQUENCE_S
from penstock.ops.bench.delivery.stand_in_worker import PROGRAM
from penstock.ops.bench.delivery.transcript import (
    PENSTOCK_TOPICS,
    PLAIN_TOPICS,
    Topics,
    counts,
    read_transcript,
    recovery_s,
)
from penstock.ops.bench.pipeline.worker_fleet import FleetSpec, WorkerFleet
from penstock.ops.kafka import KafkaBroker
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.transport.connection import ensure_topics

_NUM_REQUESTS, _WARM_UP, _RATE_PER_S = 3000, 200, 120.0  # half of what one member computes
_KILLS = (0.2, 0.7)  # of the load's span
_MEMBERS, _PARTITIONS = 2, 8
_TIMEOUT_S = 30.0  # of a call; three session timeouts
_READY_S = 60.0

Record = dict[str, Any]


def run_crash(setup: Setup) -> PartResult:
    """Part `crash`."""
    with KafkaBroker(num_partitions=_PARTITIONS) as broker:
        servers = broker.bootstrap_servers
        found = {PENSTOCK: _ours(setup, servers), FASTSTREAM: _theirs(setup, servers, ACK)}
    return _result(setup, found, ACK)


def run_default(setup: Setup) -> PartResult:
    """Part `crash-default`: the FastStream service with FastStream's default policy of acknowledgement."""
    with KafkaBroker(num_partitions=_PARTITIONS) as broker:
        found = {DEFAULT: _theirs(setup, broker.bootstrap_servers, ACK_FIRST)}
    return _result(setup, found, ACK_FIRST)


def _result(setup: Setup, found: Mapping[str, Record], ack_policy: str) -> PartResult:
    grid = Grid(
        f"{_count(setup):,} requests, two members, kill -9 twice",
        ("", *CRASH_FIGURES, "recovery, s"),
        [
            (
                name,
                *[record[figure] for figure in CRASH_FIGURES.values()],
                " ".join(f"{s:.1f}" for s in record["recovery_s"]),
            )
            for name, record in found.items()
        ],
    )
    settings = {
        "rate_per_s": _RATE_PER_S,
        "partitions": _PARTITIONS,
        "sequence_s": SEQUENCE_S,
        "members": _MEMBERS,
        "FastStream": {"ack_policy": ack_policy, "max_records": 64, **SUBSCRIBER},
    }
    return PartResult((), [grid], {**found, "settings": settings})


def _count(setup: Setup) -> int:
    """Requests. A scale below 1 does not shorten the load: a group of FastStream members takes 12 s to recover."""
    return max(_NUM_REQUESTS, setup.count(_NUM_REQUESTS))


def _ours(setup: Setup, servers: str) -> Record:
    options = ("--processes", str(_MEMBERS), "--partitions", str(_PARTITIONS))
    spec = FleetSpec("null", options, program=PROGRAM)
    with WorkerFleet(spec, "bench", servers, setup.logs / "crash") as fleet:
        fleet.wait_until_ready(_READY_S)
        load = {"target": "penstock", "model": "bench", "payload": "ids", "batch_calls": False}
        return _killed(setup, servers, PENSTOCK_TOPICS, load, lambda: _kill_one(fleet))


def _kill_one(fleet: WorkerFleet) -> float:
    """Kill the oldest of both members, as soon as there are two. Returns the Unix time."""
    if not fleet.wait_for_members(_MEMBERS, _READY_S):
        raise ProcessFailed(f"A member was not started again.\n{fleet.log_tail()}")
    at = time.time()
    os.kill(fleet.members()[0], signal.SIGKILL)
    return at


def _theirs(setup: Setup, servers: str, ack_policy: str) -> Record:
    asyncio.run(_create_topics(servers))
    with FaststreamMembers(_MEMBERS, servers, ack_policy, setup.logs / "crash-faststream.log") as members:
        members.wait_until_ready(_READY_S)
        load = {"target": "plain", "model": "", "payload": "text"}
        return _killed(setup, servers, PLAIN_TOPICS, load, members.kill_one)


async def _create_topics(servers: str) -> None:
    """The plain client reads one partition of replies."""
    cluster = KafkaCluster(servers)
    await ensure_topics(cluster, [PLAIN_TOPICS.requests], _PARTITIONS)
    await ensure_topics(cluster, [PLAIN_TOPICS.replies], 1)


def _killed(setup: Setup, servers: str, topics: Topics, load: Record, kill: Callable[[], float]) -> Record:
    """An open loop during which a member is killed twice."""
    count = _count(setup)
    load |= {"bootstrap_servers": servers, "arrivals": "poisson", "rate_per_s": _RATE_PER_S, "timeout_s": _TIMEOUT_S}
    load |= {"num_requests": count, "warm_up": _WARM_UP}
    started = setup.logs / f"crash-{topics.requests}-{time.time():.0f}.started"
    spec = dataclasses.asdict(CallSpec(load, str(started)))
    with ThreadPoolExecutor(1) as pool:
        offering = pool.submit(run_once, "delivery.call_load", spec, setup.logs / "crash-load.log")
        begun = _begun(started, offering)
        killed_at = [_kill_at(begun + share * count / _RATE_PER_S, kill) for share in _KILLS]
        result = CallResult(**offering.result())
    transcript = read_transcript(servers, topics, begun)
    ended = begun + result.wall_s
    if killed_at[-1] > begun + count / _RATE_PER_S:
        raise ProcessFailed("The load ended before the second kill, because the first member came back too late.")
    return {
        **counts(transcript),
        "calls": dataclasses.asdict(result),
        "killed_at_s": [at - begun for at in killed_at],
        "recovery_s": [recovery_s(transcript, since, until) for since, until in pairwise([*killed_at, ended])],
    }


def _begun(started: Path, offering: Future[Record]) -> float:
    """Unix time at which the measured load began."""
    while not started.exists() or not (text := started.read_text(encoding="utf-8")):
        if offering.done():
            offering.result()
        time.sleep(0.05)
    return float(text)


def _kill_at(moment: float, kill: Callable[[], float]) -> float:
    time.sleep(max(0.0, moment - time.time()))
    return kill()
