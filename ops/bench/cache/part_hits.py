"""Requests that are all in the cache: answers a second, and processor time an answer, of one member."""

import asyncio
import dataclasses
from pathlib import Path

import numpy as np

from penstock.ops.bench.cache.backlog import Ids, Pass, answered, write_backlog
from penstock.ops.bench.cache.cache_tables import THROUGH_KAFKA
from penstock.ops.bench.common.part_suite import Details
from penstock.ops.bench.common.setup import ROUNDS, Setup
from penstock.ops.bench.contestants.worker_fleet import FleetSpec, WorkerFleet
from penstock.ops.bench.load.payloads import sequences
from penstock.ops.kafka import KafkaBroker

SIZES = (1, 64)  # sequences in a record
_NUM_IDS = 15  # Banking77's mean
_NUM_DISTINCT = 8192
_NUM_SEQUENCES = {1: 40_000, 64: 120 * 1024}
_ALL = 64  # sequences in a record that fills the cache


def run_hits(setup: Setup) -> Details:
    """Part `hits`: a worker process answers a backlog, which was there before it started."""
    distinct = sequences("ids", np.full(_NUM_DISTINCT, _NUM_IDS), None, seed=1)
    path = setup.logs / "hits.db"
    with KafkaBroker() as broker:
        _answered(setup, broker, path, distinct, _ALL, "fill")
        passes = {
            size: [
                _answered(setup, broker, path, _repeated(distinct, setup, size), size, f"hits-{size}-{number}")
                for number in range(ROUNDS)
            ]
            for size in SIZES
        }
    found = {str(size): [dataclasses.asdict(one) for one in measured] for size, measured in passes.items()}
    return {THROUGH_KAFKA: found}


def _answered(setup: Setup, broker: KafkaBroker, path: Path, ids: Ids, size: int, name: str) -> Pass:
    replies = f"{name}.replies"
    count = asyncio.run(write_backlog(broker.bootstrap_servers, name, replies, ids, size))
    spec = FleetSpec("null", ("--lanes", "1", "--cache-path", str(path)), members=1)
    with WorkerFleet(spec, name, broker.bootstrap_servers, setup.logs / name) as fleet:
        return asyncio.run(answered(broker.bootstrap_servers, replies, count, fleet.pids[0]))


def _repeated(distinct: Ids, setup: Setup, size: int) -> Ids:
    count = -(-setup.count(_NUM_SEQUENCES[size]) // size) * size
    return [distinct[number % len(distinct)] for number in range(count)]
