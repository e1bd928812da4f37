"""The device of a suite: its description and libraries, and the bench of parts that run on it."""

import platform
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import torch

from penstock.ops.bench.common.machine import installed
from penstock.ops.bench.common.part_bench import PartBench

_GEMM_SIZE, _GEMM_ROUNDS = 8192, 500
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


class DeviceBench(PartBench):
    """The options are `device` and `seed`. A GPU's clocks are warm, and it is looked at after each part."""

    again_s = 5.0

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self.device, self.seed = torch.device(options["device"]), int(options["seed"])
        if self.device.type == "cuda":
            if not torch.cuda.is_available():
                raise SystemExit("torch sees no CUDA GPU. With --device cpu times mean nothing.")
            _warm_up_clocks()

    def machine(self) -> dict[str, Any]:
        """See `PartBench.machine`."""
        return describe_gpu() if self.device.type == "cuda" else {}

    def after(self) -> dict[str, Any]:
        """See `PartBench.after`."""
        return {"clocks_after": nvidia_smi()}

    def is_well(self) -> bool:
        """After an illegal access a device never works again in its process."""
        if self.device.type != "cuda":
            return True
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        except RuntimeError as error:
            print(f"The device is unusable in this process: {error}", file=sys.stderr, flush=True)
            return False
        return True


def _warm_up_clocks() -> None:
    """About a second of products: an idle device runs at a fraction of its clock."""
    a = torch.randn(_GEMM_SIZE, _GEMM_SIZE, device="cuda", dtype=torch.float16)
    for _ in range(_GEMM_ROUNDS):
        torch.mm(a, a)
    torch.cuda.synchronize()


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
