"""Description of the GPU, driver and libraries of a run. Needs the GPU."""

import platform
import subprocess
from typing import Any

import torch

from penstock.ops.bench.common.machine import installed

_QUERY = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit,temperature.gpu"
_PACKAGES = (
    "torch",
    "cupy-cuda13x",
    "cupy-cuda12x",
    "triton",
    "transformers",
    "sentence-transformers",
    "flash-attn",
    "numpy",
)


def describe_gpu() -> dict[str, Any]:
    """Fields of a kept run. Clocks are those of the moment."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": properties.L2_cache_size,
        "cuda": torch.version.cuda,
        "nvidia_smi": nvidia_smi(),
        "kernel": platform.release(),
        "versions": {"python": platform.python_version(), **installed(_PACKAGES)},
    }


def nvidia_smi() -> dict[str, str]:
    """Driver, clocks, power limit and temperature; empty where nvidia-smi does not answer."""
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader", "--id=0"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(_QUERY.split(","), [value.strip() for value in answer.strip().split(",")], strict=False))
