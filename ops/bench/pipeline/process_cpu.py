"""Processor time of processes, by label."""

import os
from collections.abc import Mapping
from pathlib import Path

from penstock.ops.bench.common.processes import cpu_s


def descendants(pid: int) -> list[int]:
    """Every process below `pid` that is alive, in the order of their ids."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (parent := _parent(int(entry))) is not None:
            children.setdefault(parent, []).append(int(entry))
    found, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return sorted(found)


def read_cpu_s(watched: Mapping[str, int]) -> dict[str, float]:
    """Processor seconds of each process that is alive, by its label."""
    found = {}
    for label, pid in watched.items():
        try:
            found[label] = sum(cpu_s(pid))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def cores_used(before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Cores that each process kept busy between two readings; those that ended, or began, in between are left out."""
    return {label: (after[label] - used_s) / seconds for label, used_s in before.items() if label in after}


def _parent(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(stat.rpartition(")")[2].split()[1])
