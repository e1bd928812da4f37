"""Throughput of at_least_once beside an earlier commit's worker, both behind this commit's clients."""

import asyncio
import io
import subprocess
import tarfile
import tempfile
from pathlib import Path

from penstock.ops.bench.common.comparison import PartResult
from penstock.ops.bench.common.processes import ProcessFailed
from penstock.ops.bench.common.setup import Setup
from penstock.ops.bench.delivery.turns import compare, cpu_grid, in_turns, make_bench, open_side
from penstock.ops.bench.pipeline.fleet_bench import BROKER_CONFIG
from penstock.ops.bench.pipeline.loads import ROWS, SHORT, Load
from penstock.ops.bench.pipeline.pipeline_plan import NULL, NULL_WORKER
from penstock.ops.bench.pipeline.worker_fleet import FleetSpec
from penstock.ops.kafka import FULL_SPEED, KafkaBroker
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.transport.connection import ensure_topics
from penstock.producer.wire.topics import bulk_topic, request_topic

NOW, BEFORE = "now", "before"
_PARTITIONS = 16
_SINGLES, _LISTS = 1024, 24
_WARM_S, _SECONDS = 0.7, 3.0


def run_before(setup: Setup) -> PartResult:
    """Part `before`."""
    if setup.before is None:
        return PartResult(details={"not_applicable": "no --before COMMIT was given"})
    low, high = SHORT
    seconds = _SECONDS * setup.scale
    loads = [
        Load("a record each", "ids", low, high, 1, _SINGLES, batch_calls=False, warm_s=_WARM_S, seconds=seconds),
        Load("64 a record", "ids", low, high, ROWS, _LISTS, warm_s=_WARM_S, seconds=seconds),
    ]
    bench = make_bench(setup, "before", seconds)
    with (
        tempfile.TemporaryDirectory(prefix="penstock-before-") as tree,
        KafkaBroker(num_partitions=_PARTITIONS, config=BROKER_CONFIG, jvm_flags=FULL_SPEED) as broker,
    ):
        commit = check_out(setup.before, Path(tree))
        asyncio.run(_create_topics(broker.bootstrap_servers))
        # The path of the links goes before an installed penstock.
        environment = {"PYTHONPATH": str(next(Path(tree).glob("ops/*/penstock")).parent)}
        earlier = FleetSpec(NULL, NULL_WORKER, members=1, environment=environment)
        with (
            open_side(bench, broker, BEFORE, earlier, None) as before,
            open_side(bench, broker, NOW, FleetSpec(NULL, NULL_WORKER, members=1), None) as now,
        ):
            found = in_turns({BEFORE: before, NOW: now}, loads)
    comparisons = [
        compare(f"null engine, {load}", sides[NOW], commit[:7], sides[BEFORE]) for load, sides in found.items()
    ]
    return PartResult(comparisons, [cpu_grid(found)], {"commit": commit, "partitions": _PARTITIONS, "loads": found})


def check_out(commit: str, folder: Path) -> str:
    """Write the files of a commit of this checkout into a folder; returns its full name. Raises ProcessFailed."""
    git = ["git", "-C", str(Path(__file__).resolve().parents[3])]
    try:
        name = subprocess.run([*git, "rev-parse", f"{commit}^{{commit}}"], capture_output=True, check=True)
        packed = subprocess.run([*git, "archive", "--format=tar", commit], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ProcessFailed(f"The checkout has no commit {commit}: {error}") from error
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="tar")  # "data" of Python 3.11 refuses links between folders
    return name.stdout.decode().strip()


async def _create_topics(servers: str) -> None:
    """Earlier workers do not create their topics."""
    requests = [request_topic(side) for side in (NOW, BEFORE)]
    await ensure_topics(KafkaCluster(servers), [*requests, *map(bulk_topic, requests)], _PARTITIONS)
