"""Resources of this machine: cores, GPUs and memory. Loads no CUDA library, which takes memory on each GPU."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from penstock.worker.supervision.placement import Gpu, Machine

_FIELDS = ("index", "uuid", "name", "memory.free")
_QUERY = ("nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits")
_QUERY_S = 20.0  # it takes seconds where the driver is not kept loaded
_CPUS = Path("/sys/devices/system/cpu")

log = structlog.get_logger("penstock.supervisor")


def this_machine(environment: Mapping[str, str] = os.environ) -> Machine:
    """Cores that this process may use, and GPUs that CUDA_VISIBLE_DEVICES leaves visible."""
    cpus = sorted(os.sched_getaffinity(0), key=lambda cpu: (*_core(cpu), cpu))  # hyperthreads of a core are neighbours
    return Machine(tuple(cpus), tuple(visible_gpus(_listed_gpus(), environment.get("CUDA_VISIBLE_DEVICES"))))


def visible_gpus(listed: Sequence[Gpu], visible: str | None) -> list[Gpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES names, in its order. Like CUDA, stops at the first that does not exist."""
    if visible is None:
        return list(listed)
    chosen: list[Gpu] = []
    for entry in filter(None, map(str.strip, visible.split(","))):
        if entry.startswith("MIG-"):
            chosen.append(Gpu(entry, "MIG", None))
            continue
        found = [gpu for at, gpu in enumerate(listed) if entry == str(at) or (gpu.uuid.startswith(entry))]
        if len(found) != 1:
            break
        chosen += found
    return chosen


def free_gpu_bytes(uuid: str) -> int | None:
    """Free memory of a GPU now; None if it is unknown."""
    return next((gpu.free_bytes for gpu in _listed_gpus() if gpu.uuid == uuid), None)


def resident_bytes(pid: int) -> int:
    """Memory of a process; 0 if it has ended."""
    fields = _read(Path(f"/proc/{pid}/statm")).split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else 0


def _listed_gpus() -> list[Gpu]:
    """The GPUs that nvidia-smi lists, also where it fails on one of them; none where it is missing."""
    try:
        ran = subprocess.run(_QUERY, capture_output=True, text=True, timeout=_QUERY_S, check=False)
    except FileNotFoundError:
        return []
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("nvidia_smi_failed", reason=str(error))
        return []
    if ran.returncode:
        log.warning("nvidia_smi_failed", reason=(ran.stderr or ran.stdout).strip(), exit_code=ran.returncode)
    rows = [[field.strip() for field in line.split(",")] for line in ran.stdout.splitlines()]
    listed = [row for row in rows if len(row) == len(_FIELDS)]  # other lines are messages
    return [Gpu(uuid, name, int(free) << 20 if free.isdigit() else None) for _, uuid, name, free in listed]


def _core(cpu: int) -> tuple[int, int]:
    """Socket and core of a logical processor."""
    topology = _CPUS / f"cpu{cpu}" / "topology"
    socket, core = (_read(topology / name).strip() for name in ("physical_package_id", "core_id"))
    return int(socket) if socket.isdigit() else 0, int(core) if core.isdigit() else cpu


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
