"""Description of the machine of a run: processor, versions, commit."""

import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from penstock.ops.kafka.jars import jar_dir

_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16")
_PACKAGES = (
    *("penstock", "aiokafka", "faststream", "msgpack", "numpy", "sentence-transformers"),
    *("opentelemetry-sdk", "tokenizers", "torch", "transformers", "uvloop"),
)


def use_cores(count: int) -> list[int]:
    """Pin this process, and every process it starts, to `count` cores or as many as there are. Returns them."""
    cores = sorted(os.sched_getaffinity(0))[:count]
    os.sched_setaffinity(0, cores)
    return cores


def describe_machine() -> dict[str, Any]:
    """Processor, versions and commit, as a kept run carries them."""
    cpu = _cpuinfo()
    flags = set(cpu.get("flags", "").split())
    return {
        "cpu": cpu.get("model name", platform.processor() or platform.machine()),
        # The "model name" of a virtual machine may hide the generation; these show it.
        "cpu_family_model": f"{cpu.get('cpu family', '?')}/{cpu.get('model', '?')}",
        "cores_used": sorted(os.sched_getaffinity(0)),
        "cores_of_machine": os.cpu_count(),
        "flags": {flag: flag in flags for flag in _FLAGS},
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "versions": {"python": platform.python_version(), "kafka": jar_dir().name, **installed(_PACKAGES)},
        "commit": _commit(),
    }


def slug(machine: Mapping[str, Any]) -> str:
    """Folder name of a machine: its GPU, or else its processor and the number of cores in use."""
    if "gpu" in machine:
        return _slugged(machine["gpu"])
    return f"{_slugged(machine['cpu'])}-{len(machine['cores_used'])}-cores"


def title(machine: Mapping[str, Any]) -> str:
    """Name of a machine for a reader, from the same fields."""
    return str(machine["gpu"]) if "gpu" in machine else f"{machine['cpu']}, {len(machine['cores_used'])} cores"


def _slugged(name: object) -> str:
    return re.sub(r"[^a-z0-9]+", "-", str(name).lower()).strip("-")


def _cpuinfo() -> dict[str, str]:
    """The first processor's entry of /proc/cpuinfo; empty where there is none."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    first = path.read_text(encoding="utf-8").split("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def installed(packages: Iterable[str]) -> dict[str, str | None]:
    """The version of each package; None where there is none."""
    versions: dict[str, str | None] = {}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def _commit() -> str | None:
    """The checkout's commit, with a + when files differ from it; None outside a checkout."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+" if changed.stdout.strip() else "")
