"""The checks of this machine. Each examines one part of a set-up and returns problems as findings, not errors."""

import asyncio
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

from pydantic import Field

from penstock.engine.host_memory import free_host_bytes
from penstock.engine.types import ENTAIL
from penstock.producer.wire.messages import STEPPED_TASKS
from penstock.worker.command import placements_for
from penstock.worker.model_settings import NULL_MODEL
from penstock.worker.settings import WorkerSettings
from penstock.worker.supervision.machine import free_gpu_bytes, resident_bytes
from penstock.worker.supervision.member_starter import growth_bytes
from penstock.worker.supervision.mps import MpsUnavailable, mps_program
from penstock.worker.supervision.placement import CannotPlace, Machine, Placement, num_fitting


class CheckSettings(WorkerSettings):
    """A worker's settings, all of them optional. Only what is given is checked."""

    model: str | None = Field(  # type: ignore[assignment]  # wider than the worker's: a model is optional here
        None, description="Checkpoint to load: a directory, or a Hugging Face id."
    )


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    what: str  # the part that was examined
    state: Literal["OK", "problem", "not checked"]
    found: str
    remedy: str = ""  # the action that would help


class MemberMemory:
    """Whether memory holds a worker's members: the supervisor's arithmetic, from one load here.

    Made before the model is loaded in this process; `measure` is called while it is. A member takes more once its
    batches have been timed. The supervisor counts that too, when the first member has loaded.
    """

    def __init__(self, machine: Machine) -> None:
        """`machine`: with the memory that is free on each GPU now."""
        self._free = {gpu.uuid: gpu.free_bytes for gpu in machine.gpus}
        self._taken: dict[bool, int] = {}  # by whether on a GPU

    def measure(self, device: str) -> None:
        """Take the memory that the model takes on this device: "cpu", or the first visible GPU."""
        if device == "cpu":
            self._taken[False] = resident_bytes(os.getpid())
            return
        uuid, before = next(iter(self._free.items()), ("", None))
        left = None if before is None else free_gpu_bytes(uuid)
        if before is not None and left is not None:
            self._taken[True] = max(0, before - left)

    def shortage(self, members: Sequence[Placement]) -> str | None:
        """Of the members of one device: the arithmetic if not all fit, else empty. None if their memory is unknown."""
        uuid = members[0].uuid
        taken = self._taken.get(uuid is not None)
        if taken is None:
            return None
        free = self._free[uuid] if uuid is not None else free_host_bytes()
        if uuid is None and free is not None:
            free += taken  # this process ends before they start
        return num_fitting(len(members), free, taken + growth_bytes(members[0]))[1]


def model(settings: CheckSettings, memory: MemberMemory) -> Finding:
    """Load the model as a worker does, and measure its memory."""
    if settings.model is None:
        return Finding("Model", "not checked", "No model was given.", "Give --model.")
    if settings.model == NULL_MODEL:
        return Finding("Model", "OK", "null: does no work, for measuring the pipeline")
    from penstock.engine.errors import EngineError, UnsupportedDevice
    from penstock.worker.model_loading import load_tokenizer
    from penstock.worker.process import load

    has_head = settings.head is not None and _read_error(settings.head) is None  # `head` reports an unreadable file
    try:
        engine = load(settings if has_head else settings.model_copy(update={"head": None}))
        if "sequence" not in engine.info.tasks:
            load_tokenizer(settings, engine.info)
    except UnsupportedDevice as error:
        return Finding("Model", "problem", str(error), "Give another --device or --dtype; auto takes what there is.")
    except EngineError as error:
        return Finding("Model", "problem", str(error), "Give another --model, or repair this one.")
    info = engine.info
    memory.measure(info.device)
    dimensions = f"{info.dim} dimensions, " if info.dim and info.tasks.isdisjoint(STEPPED_TASKS) else ""
    dimensions += f"{info.token_dim} dimensions a token, " if info.token_dim else ""
    unit = "steps" if "sequence" in info.tasks else "tokens"
    labels = f"{len(info.labels)} labels{' or those of a request' * (ENTAIL in info.tasks)}, " if info.labels else ""
    return Finding(
        "Model",
        "OK",
        f"{info.name}: {', '.join(info.request_tasks)}; {dimensions}{labels}up to {info.max_tokens} {unit}, "
        f"{info.dtype} on {info.device}{', padded' if info.padded else ''}",
    )


def members(settings: CheckSettings, machine: Machine, memory: MemberMemory) -> Finding:
    """Show where `penstock worker` would run members of the consumer group on this machine. Called after `model`."""
    try:
        placements = placements_for(settings, machine)
        if settings.mps == "on":
            mps_program()
    except CannotPlace as error:
        remedy = "Give other --gpus, --processes or --mps, or check that nvidia-smi lists the GPU."
        return Finding("Members", "problem", str(error), remedy)
    except MpsUnavailable as error:
        return Finding("Members", "problem", str(error))
    lines, shortages = [], []
    for device, placed in groupby(sorted(placements, key=lambda at: at.gpu or 0), key=lambda at: at.device):
        here = list(placed)
        gpu = here[0].gpu
        name = "the CPU" if gpu is None else f"{device}, {machine.gpus[gpu].name}"
        num_cores = len({cpu for at in here for cpu in at.cpus})
        each = f"{num_cores} core{'s' if num_cores > 1 else ''}{' among them' if len(here) > 1 else ''}"
        lines.append(f"{len(here)} on {name}, with {each}")
        shortages.append(memory.shortage(here) if len(here) > 1 else "")
    why = "as --processes says" if settings.processes else "by --processes auto"
    if None in shortages:
        why += "; fewer if memory does not hold all, which --model shows"
    found, short = "; ".join(lines) + f" ({why})", [shortage for shortage in shortages if shortage]
    if short:
        remedy = "The worker starts as many as fit. Give that number as --processes."
        return Finding("Members", "problem", f"{found}. {'; '.join(short)}", remedy)
    return Finding("Members", "OK", found)


def head(settings: CheckSettings) -> Finding:
    """Check that the head's file can be read. `model` checks that it fits the model."""
    if settings.head is None:
        return Finding("Head", "not checked", "None was given: the model's own is used, if any.", "Give --head.")
    reason = _read_error(settings.head)
    if reason is not None:
        return Finding("Head", "problem", f"{settings.head}: {reason}", "Set --head to a safetensors file.")
    return Finding("Head", "OK", f"{settings.head} can be read")


def _read_error(path: Path) -> str | None:
    try:
        if path.exists() and not path.is_file():  # to open a FIFO would block
            return "it is not a regular file"
        path.open("rb").close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def metrics(settings: CheckSettings) -> Finding:
    """Check that the metrics port is free."""
    port = settings.metrics_port
    if port is None:
        return Finding("Metrics", "not checked", "No port was given: workers serve none.", "Give --metrics-port.")
    try:
        family, *_, address = socket.getaddrinfo(settings.metrics_host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the metrics server does
            probe.bind(address)
    except OSError as error:
        remedy = "Give another --metrics-port, unless a worker on this machine already uses it."
        return Finding("Metrics", "problem", f"port {port}: {error.strerror}", remedy)
    return Finding("Metrics", "OK", f"port {port} is free")


def cache(settings: CheckSettings) -> Finding:
    """Open the cache file as a worker does, which creates it."""
    path = settings.cache_path
    if path is None:
        return Finding("Cache", "not checked", "No file was given: workers use no cache.", "Give --cache-path.")
    if not path.parent.is_dir():
        return Finding("Cache", "problem", f"{path.parent} is not a directory", f"mkdir -p {path.parent}")
    reason = asyncio.run(_cache_error(settings, path))
    if reason is not None:
        remedy = "Set --cache-path to a file that this user may write, on a disk with free space."
        return Finding("Cache", "problem", f"{path} cannot be used: {reason}", remedy)
    return Finding("Cache", "OK", f"{path} can be written")


async def _cache_error(settings: CheckSettings, path: Path) -> str | None:
    from structlog.testing import capture_logs

    from penstock.cache import ResponseCache

    with capture_logs() as events:
        async with await ResponseCache(
            path, max_bytes=settings.cache_max_bytes, ttl_s=settings.cache_ttl_s
        ).open() as opened:
            await opened.put_many({b"penstock check": b""})
            works = opened.stats.works
    return None if works else "; ".join(str(event.get("reason", event["event"])) for event in events)


def processor(settings: CheckSettings) -> Finding:
    """Show the arithmetic that `--dtype auto` chooses on this processor."""
    from penstock.engine.device import is_bfloat16_fast

    arithmetic = "bfloat16" if is_bfloat16_fast() else "float32, for bfloat16 is slower here"
    return Finding("Processor", "OK", f"{os.cpu_count()} cores, {arithmetic}")


def gpu(settings: CheckSettings) -> Finding:
    """Check for a GPU that can run the kernels, and whether `--device` needs one."""
    import torch

    from penstock.engine.device import device_name, missing_for_gpu

    missing = missing_for_gpu()
    if missing is None:
        return Finding("GPU", "OK", f"{device_name()}, torch CUDA {torch.version.cuda}")
    if settings.device == "cuda":
        remedy = "Install penstock[gpu] and check that nvidia-smi lists a GPU; or give --device auto to use the CPU."
        return Finding("GPU", "problem", f"--device cuda, but {missing}", remedy)
    if torch.cuda.is_available() and settings.device == "auto":
        return Finding("GPU", "problem", missing, "Install what is missing, or give --device cpu.")
    return Finding("GPU", "OK", f"{missing}: models run on the CPU")


def local_kafka(settings: CheckSettings) -> Finding:
    """Check whether `penstock broker --kind kafka` can run here. Production set-ups do not need it."""
    from penstock.ops.kafka import kafka_missing

    missing = kafka_missing()
    if missing is not None:
        return Finding("Local Kafka", "not checked", f"{missing}.", "Only needed for: penstock broker --kind kafka")
    return Finding("Local Kafka", "OK", "penstock broker --kind kafka can run here")
