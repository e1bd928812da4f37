"""What the parts of a suite on a device share in the process that measures."""

import sys
from collections.abc import Mapping
from typing import Any

import torch

from penstock.ops.bench.common.part_bench import PartBench
from penstock.ops.bench.gpu.gpu_machine import describe_gpu, nvidia_smi

_GEMM_SIZE, _GEMM_ROUNDS = 8192, 500


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
