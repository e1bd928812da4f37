"""Kafka and a worker for one command alone (`--local`). Both end with it, however it ends."""

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from penstock.ops.cli.jobs.job_settings import FileJobSettings
from penstock.ops.cli.setting_options import option_name
from penstock.ops.cli.terminal import BadUsage, narrate_logs, say, stderr
from penstock.ops.demo.worker_child import WorkerFailed, WorkerProcess
from penstock.ops.kafka import FAST_START, FULL_SPEED, KafkaBroker
from penstock.ops.kafka.owned import OwnedFolder
from penstock.producer.settings import KafkaSettings
from penstock.worker.model_settings import ModelSettings

T = TypeVar("T")

READY_TIMEOUT_S = 900.0  # a checkpoint may have to be downloaded first
_POLL_S = 0.2
_FEW_CORES = 4  # where the broker's compiler would take time from the engine for longer than it saves
_PARTITIONS = 40  # five members on each of eight GPUs
# Requests and replies are read at once, so the broker's disk need not hold more than some of them.
_BROKER = {"log.segment.bytes": str(64 << 20), "log.retention.bytes": str(256 << 20)}
_BROKER |= {"log.retention.check.interval.ms": "5000", "log.segment.delete.delay.ms": "1000"}
# What an event of the worker's log says about the time after it. Of several members, the last one counts.
_PHASES = {
    "worker_starting": "Loading {model}",
    "model_loaded": "Measuring batch times, for ten seconds at most",
    "cost_table_loaded": "Joining the consumer group",
    "cost_table_measured": "Joining the consumer group",
}

WhileAlive = Callable[[Coroutine[Any, Any, T]], Coroutine[Any, Any, T]]


@contextmanager
def local_broker(settings: FileJobSettings) -> Iterator[FileJobSettings]:
    """Start the broker, where `--local` asks for one. Yields the settings of clients that reach it.

    Blocks, and is entered before the event loop starts: an interrupt then ends the broker too.

    Raises:
        BadUsage: another broker was given as well.
        CheckpointError: the model is neither a directory nor an id.
        BrokerError: Java or Maven is missing, or the broker failed.
    """
    if not settings.local:
        yield settings
        return
    given = [name for name in KafkaSettings.model_fields if name != "config" and settings.origins.get(name) == "given"]
    if given:
        raise BadUsage(f"--local starts its own Kafka: leave out {', '.join(map(option_name, given))}.")
    _model_settings(settings).require_model()
    say("Starting Kafka on this machine.")
    flags = FAST_START if len(os.sched_getaffinity(0)) <= _FEW_CORES else FULL_SPEED
    with KafkaBroker(num_partitions=_PARTITIONS, config=_BROKER, jvm_flags=flags) as broker:
        kafka = {name: field.default for name, field in KafkaSettings.model_fields.items() if name != "config"}
        narrate_logs(broker.bootstrap_servers)
        yield settings.model_copy(update={**kafka, "bootstrap_servers": broker.bootstrap_servers})


@asynccontextmanager
async def local_worker(settings: FileJobSettings) -> AsyncIterator[WhileAlive[Any]]:
    """Start the worker, where `--local` asks for one, and wait until it serves.

    Yields a function that awaits work, and raises WorkerFailed if the worker ends first.

    Raises:
        WorkerFailed: the worker ended, or did not serve within `READY_TIMEOUT_S`.
    """
    if not settings.local:
        yield _as_it_is
        return
    model = _model_settings(settings)
    given = [(name, value) for name, value in model if value is not None and name not in ("config", "served_name")]
    arguments = [part for name, value in given for part in (option_name(name), str(value))]
    arguments += ["--served-name", settings.served_name, "--bootstrap-servers", settings.bootstrap_servers]
    arguments += ["--partitions", str(_PARTITIONS), "--drain-s", "1", "--log-format", "json"]
    environment = {name: value for name, value in os.environ.items() if not name.upper().startswith("PENSTOCK_")}
    with OwnedFolder("penstock-local-") as folder, _kept_if_named(folder.path / "worker.jsonl") as log_path:
        async with WorkerProcess(arguments, log_path, environment) as worker:
            await _start(worker, settings)
            yield worker.while_alive


async def _start(worker: WorkerProcess, settings: FileJobSettings) -> None:
    try:
        with _phases(f"Starting a worker for {settings.model}") as show:
            await worker.while_alive(_until_ready(worker, settings, show))
    except WorkerFailed as failure:
        raise WorkerFailed(_fault(worker.log_path) or str(failure)) from failure


@contextmanager
def _kept_if_named(log_path: Path) -> Iterator[Path]:
    """Keep a copy of the worker's log where an error names it: the log's folder ends with this command."""
    try:
        yield log_path
    except WorkerFailed as failure:
        if str(log_path) not in str(failure):
            raise
        descriptor, kept = tempfile.mkstemp(prefix="penstock-worker-", suffix=".jsonl")
        os.close(descriptor)
        shutil.copyfile(log_path, kept)
        raise WorkerFailed(str(failure).replace(str(log_path), kept)) from failure


def _model_settings(settings: FileJobSettings) -> ModelSettings:
    """Settings of a worker on another cluster are in the same variables and files: what concerns the model is kept."""
    return ModelSettings.model_validate({"model": settings.model, "config": settings.config})


async def _as_it_is(work: Coroutine[Any, Any, T]) -> T:
    return await work


async def _until_ready(worker: WorkerProcess, settings: FileJobSettings, show: Callable[[str], None]) -> None:
    """Wait until a member has its partitions; others may join later. Raises WorkerFailed after `READY_TIMEOUT_S`."""
    ends = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < ends:
        names = [str(event.get("event")) for event in worker.events()]
        if "partitions_assigned" in names:
            return
        if phases := [_PHASES[name] for name in names if name in _PHASES]:
            show(phases[-1].format(model=settings.model))
        await asyncio.sleep(_POLL_S)
    raise WorkerFailed(f"The worker was not ready in {READY_TIMEOUT_S:g} s.\n{worker.log_tail()}")


def _fault(path: Path) -> str:
    """The sentence with which the worker ended; empty if it has none."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.removeprefix("Error: ") for line in reversed(lines) if line.startswith("Error: ")), "")


@contextmanager
def _phases(first: str) -> Iterator[Callable[[str], None]]:
    """Show what is going on: with a spinner on a terminal, line by line elsewhere."""
    console = stderr()
    shown = ""

    def show(phase: str) -> None:
        nonlocal shown
        if phase == shown:
            return
        shown = phase
        if status is None:
            say(f"{phase} …")
        else:
            status.update(phase)

    with console.status(first) if console.is_terminal else nullcontext() as status:
        show(first)
        yield show
