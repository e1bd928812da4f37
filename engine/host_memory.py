"""Free memory of the host, as the kernel says."""

from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_CGROUP_FILES = (  # limit, use, statistics, and the statistic of pages that can be taken back: of versions 2 and 1
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
)


def free_host_bytes() -> int | None:
    """Memory that this process could still take: of the machine, or of its control group if that is less."""
    available = [line for line in _read(Path("/proc/meminfo")).splitlines() if line.startswith("MemAvailable:")]
    free = [int(line.split()[1]) << 10 for line in available]
    for names in _CGROUP_FILES:
        limit, used, statistics = (_read(_CGROUP / name).strip() for name in names[:3])
        if limit.isdigit() and used.isdigit():
            cached = [line for line in statistics.splitlines() if line.startswith(f"{names[3]} ")]
            free.append(int(limit) - int(used) + sum(int(line.split()[1]) for line in cached))
    return min(free, default=None)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
