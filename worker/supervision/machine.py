"""What this machine offers: cores, GPUs and free memory. Loads no CUDA library, which would take memory on each GPU."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.worker.supervision.placement import Gpu, Machine

_QUERY = ("nvidia-smi", "--query-gpu=index,uuid,name,memory.free", "--format=csv,noheader,nounits")
_QUERY_S = 20.0  # it takes seconds where the driver is not kept loaded
_CGROUP = Path("/sys/fs/cgroup")


def this_machine(environment: Mapping[str, str] = os.environ) -> Machine:
    """Cores that this process may use, and GPUs that CUDA_VISIBLE_DEVICES leaves visible."""
    cpus = sorted(os.sched_getaffinity(0), key=lambda cpu: (_socket(cpu), cpu))
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


def free_host_bytes() -> int | None:
    """Memory that this process could still take: of the machine, or of its control group if that is less."""
    available = [line for line in _read(Path("/proc/meminfo")).splitlines() if line.startswith("MemAvailable:")]
    free = [int(line.split()[1]) << 10 for line in available]
    limit, used = _read(_CGROUP / "memory.max").strip(), _read(_CGROUP / "memory.current").strip()
    if limit.isdigit() and used.isdigit():
        cached = [line for line in _read(_CGROUP / "memory.stat").splitlines() if line.startswith("inactive_file ")]
        free.append(int(limit) - int(used) + sum(int(line.split()[1]) for line in cached))
    return min(free, default=None)


def resident_bytes(pid: int) -> int:
    """Memory of a process; 0 if it has ended."""
    fields = _read(Path(f"/proc/{pid}/statm")).split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else 0


def _listed_gpus() -> list[Gpu]:
    """The GPUs that nvidia-smi lists; none where it is missing or fails."""
    try:
        listed = subprocess.run(_QUERY, capture_output=True, text=True, timeout=_QUERY_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[field.strip() for field in line.split(",")] for line in listed.splitlines() if line.strip()]
    return [Gpu(uuid, name, int(free) << 20 if free.isdigit() else None) for _, uuid, name, free in rows]


def _socket(cpu: int) -> int:
    number = _read(Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id")).strip()
    return int(number) if number.isdigit() else 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
