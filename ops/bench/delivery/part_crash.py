"""A member of two is killed with SIGKILL, twice: what is answered twice or never, and how long partitions wait."""

import dataclasses
import os
import signal
import time
from collections.abc import Callable
from itertools import pairwise

from penstock.ops.bench.common.processes import ProcessFailed
from penstock.ops.bench.common.setup import Details, Setup
from penstock.ops.bench.contestants.faststream import ACK, MAX_RECORDS, SUBSCRIBER, open_faststream
from penstock.ops.bench.contestants.stand_in import SEQUENCE_S
from penstock.ops.bench.contestants.stand_in_worker import PROGRAM
from penstock.ops.bench.contestants.worker_fleet import FleetSpec, WorkerFleet
from penstock.ops.bench.delivery.delivery_tables import DEFAULT, FASTSTREAM, PENSTOCK
from penstock.ops.bench.delivery.transcript import (
    PENSTOCK_TOPICS,
    PLAIN_TOPICS,
    Topics,
    counts,
    read_transcript,
    recovery_s,
)
from penstock.ops.bench.load.load_bench import LoadBench, open_clients
from penstock.ops.bench.load.loads import Load
from penstock.ops.kafka import KafkaBroker

_RATE_PER_S, _SECONDS = 120.0, 25.0  # half of what one member computes; 3,000 requests
_KILLS = (0.2, 0.7)  # of the load's span
_MEMBERS, _PARTITIONS = 2, 8
_TIMEOUT_S = 30.0  # of a call; three session timeouts
_READY_S = 60.0


def run(setup: Setup, ack_policy: str) -> Details:
    """Parts `crash`, and `crash-default`: the FastStream service alone, with its default policy of acknowledgement."""
    with KafkaBroker(num_partitions=_PARTITIONS) as broker:
        found = {PENSTOCK: _ours(setup, broker)} if ack_policy == ACK else {}
        found[FASTSTREAM if ack_policy == ACK else DEFAULT] = _theirs(setup, broker, ack_policy)
    settings = {
        "rate_per_s": _RATE_PER_S,
        "partitions": _PARTITIONS,
        "sequence_s": SEQUENCE_S,
        "members": _MEMBERS,
        "FastStream": {"ack_policy": ack_policy, "max_records": MAX_RECORDS, **SUBSCRIBER},
    }
    return {**found, "settings": settings}


def _ours(setup: Setup, broker: KafkaBroker) -> Details:
    options = ("--processes", str(_MEMBERS), "--partitions", str(_PARTITIONS))
    spec = FleetSpec("null", options, program=PROGRAM)

    def kill_one(fleet: WorkerFleet) -> float:
        """Kill the oldest of both members, as soon as there are two. Returns the Unix time."""
        if not fleet.wait_for_members(_MEMBERS, _READY_S):
            raise ProcessFailed(f"A member was not started again.\n{fleet.log_tail()}")
        at = time.time()
        os.kill(fleet.members()[0], signal.SIGKILL)
        return at

    with (
        WorkerFleet(spec, "bench", broker.bootstrap_servers, setup.logs / "crash") as fleet,
        open_clients(broker, setup.logs, "bench", fleet.watched) as side,
    ):
        fleet.wait_until_ready(_READY_S)
        load = Load("crash", "ids", 15, 15, batch_calls=False)
        return _killed(setup, broker, PENSTOCK_TOPICS, side, load, lambda: kill_one(fleet))


def _theirs(setup: Setup, broker: KafkaBroker, ack_policy: str) -> Details:
    options = {"count": _MEMBERS, "partitions": _PARTITIONS, "ack_policy": ack_policy}
    with open_faststream(broker, setup.logs, "crash-faststream", **options) as (side, members):
        return _killed(setup, broker, PLAIN_TOPICS, side, Load("crash", "banking77"), members.kill_one)


def _killed(
    setup: Setup, broker: KafkaBroker, topics: Topics, side: LoadBench, load: Load, kill: Callable[[], float]
) -> Details:
    """An open loop during which a member is killed twice.

    A scale below 1 does not shorten it: a group of FastStream members takes 12 s to recover.
    """
    load = dataclasses.replace(load, timeout_s=_TIMEOUT_S, warm_s=0.0, seconds=max(_SECONDS, setup.seconds(_SECONDS)))
    side.offer(dataclasses.replace(load, name="warm-up", callers=8, seconds=1.0))
    first_s, second_s = (share * load.seconds for share in _KILLS)
    killed_at: list[float] = []

    def kill_twice() -> None:
        killed_at.append(kill())
        time.sleep(max(0.0, killed_at[0] + second_s - first_s - time.time()))
        killed_at.append(kill())

    record, calls = side.watch(dataclasses.replace(load, rate_per_s=_RATE_PER_S), first_s, kill_twice)
    begun = record["started"]
    if killed_at[-1] > begun + load.span_s:
        raise ProcessFailed("The load ended before the second kill, because the first member came back too late.")
    transcript = read_transcript(broker.bootstrap_servers, topics, begun)
    ended = begun + float(calls.finished.max())
    return {
        **counts(transcript),
        "calls": record,
        "killed_at_s": [at - begun for at in killed_at],
        "recovery_s": [recovery_s(transcript, since, until) for since, until in pairwise([*killed_at, ended])],
    }
