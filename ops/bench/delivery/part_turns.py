"""Throughput in turns behind one broker: exactly_once beside at_least_once, and beside an earlier commit's worker."""

import asyncio
import io
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.ops.bench.common.processes import ProcessFailed
from penstock.ops.bench.common.setup import Details, Setup
from penstock.ops.bench.contestants.worker_fleet import FleetSpec, open_workers
from penstock.ops.bench.load.load_bench import BROKER_CONFIG, in_turns
from penstock.ops.bench.load.loads import ROWS, SHORT, Load
from penstock.ops.bench.pipeline.pipeline_bench import NULL_WORKER
from penstock.ops.kafka import FULL_SPEED, KafkaBroker
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.transport.connection import ensure_topics
from penstock.producer.wire.topics import bulk_topic, request_topic
from penstock.worker.model_settings import NULL_MODEL

PARTITIONS = 16
AT_LEAST_ONCE, EXACTLY_ONCE = "at_least_once", "exactly_once"
NOW, BEFORE = "now", "before"
_WARM_S = 0.7


def run_modes(setup: Setup) -> Details:
    """Part `modes`: without a model, so that all of the cost is Kafka's and the pipeline's."""
    # Enough in flight that the latency of a transaction does not bound the rate.
    loads = [_singles(4096, setup.seconds(2.0)), _lists(96, setup.seconds(2.0))]
    return _modes(setup, None, NULL_WORKER, loads)


def run_modes_minilm(setup: Setup) -> Details:
    """Part `modes-minilm`."""
    return _modes(setup, setup.model, ("--device", "cpu"), [_singles(256, setup.seconds(4.0))])


def run_before(setup: Setup) -> Details:
    """Part `before`: both workers have this commit's clients."""
    if setup.before is None:
        raise ValueError("Part `before` needs --before COMMIT.")
    loads = [_singles(1024, setup.seconds(3.0)), _lists(24, setup.seconds(3.0))]
    with tempfile.TemporaryDirectory(prefix="penstock-before-") as tree, _broker() as broker:
        commit = check_out(setup.before, Path(tree))
        asyncio.run(_create_topics(broker.bootstrap_servers))
        # The path of the links goes before an installed penstock.
        environment = {"PYTHONPATH": str(next(Path(tree).glob("ops/*/penstock")).parent)}
        earlier = FleetSpec(NULL_MODEL, NULL_WORKER, members=1, environment=environment)
        with (
            open_workers(broker, setup.logs, BEFORE, earlier, None) as before,
            open_workers(broker, setup.logs, NOW, FleetSpec(NULL_MODEL, NULL_WORKER, members=1), None) as now,
        ):
            found = in_turns({BEFORE: before, NOW: now}, loads)
    return {"commit": commit, "partitions": PARTITIONS, "loads": found}


def _modes(setup: Setup, model: Path | None, options: Sequence[str], loads: Sequence[Load]) -> Details:
    """Clients read as each mode asks for."""

    def workers(broker: KafkaBroker, mode: str, **client: Any) -> Any:
        arguments = (*options, "--partitions", str(PARTITIONS), "--delivery", mode)
        spec = FleetSpec(NULL_MODEL if model is None else str(model), arguments, members=1)
        return open_workers(broker, setup.logs, mode, spec, model, **client)

    with (
        _broker() as broker,
        workers(broker, AT_LEAST_ONCE) as at_least,
        workers(broker, EXACTLY_ONCE, isolation_level="read_committed") as exactly,
    ):
        found = in_turns({AT_LEAST_ONCE: at_least, EXACTLY_ONCE: exactly}, loads)
    return {"partitions": PARTITIONS, "loads": found}


def _singles(callers: int, seconds: float) -> Load:
    return Load("a record each", "ids", *SHORT, 1, callers, batch_calls=False, warm_s=_WARM_S, seconds=seconds)


def _lists(callers: int, seconds: float) -> Load:
    return Load("64 a record", "ids", *SHORT, ROWS, callers, warm_s=_WARM_S, seconds=seconds)


def _broker() -> KafkaBroker:
    return KafkaBroker(num_partitions=PARTITIONS, config=BROKER_CONFIG, jvm_flags=FULL_SPEED)


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
    await ensure_topics(KafkaCluster(servers), [*requests, *map(bulk_topic, requests)], PARTITIONS)
