"""Measured ceilings of the device: bytes copied, and a large fp16 product."""

import statistics
from typing import Any

import torch

from penstock.ops.bench.gpu.bench import Bench
from penstock.ops.bench.gpu.timing import once_ms

_COPY_BYTES = 2 << 30
_GEMM_SIZE = 8192
_REPEATS = 12


def run(bench: Bench) -> dict[str, Any]:
    """About 1 s."""
    return {"copy_bytes_per_s": copy_bytes_per_s(), "gemm_flops_per_s": gemm_flops_per_s()}


def copy_bytes_per_s() -> float:
    """Of a copy from device to device that dwarfs the caches; bytes read plus bytes written."""
    source = torch.randint(0, 256, (_COPY_BYTES,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    target.copy_(source)
    milliseconds = statistics.median(once_ms(lambda: target.copy_(source)) for _ in range(_REPEATS))
    return 2 * _COPY_BYTES / milliseconds * 1e3


def gemm_flops_per_s() -> float:
    """Of one large fp16 product of random numbers."""
    a, b = (torch.randn(_GEMM_SIZE, _GEMM_SIZE, device="cuda").half() for _ in range(2))
    out = torch.empty_like(a)
    for _ in range(3):
        torch.mm(a, b, out=out)
    milliseconds = statistics.median(once_ms(lambda: torch.mm(a, b, out=out)) for _ in range(_REPEATS))
    return 2 * _GEMM_SIZE**3 / milliseconds * 1e3
