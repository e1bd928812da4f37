"""`python -m penstock.ops.bench.gpu.part_runner FOLDER ORDER`: the process that measures, started by `DeviceSuite`.

ORDER is JSON: bench, device, seed, seconds_left, and parts. It writes one file for each part.
"""

import json
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from penstock.ops.bench.common.runs import finite
from penstock.ops.bench.gpu.device_bench import DeviceBench
from penstock.ops.bench.gpu.device_suite import DEVICE_IS_SICK, named
from penstock.ops.bench.gpu.gpu_machine import describe_gpu, nvidia_smi
from penstock.ops.bench.gpu.timing import deadline

STOPPED_AFTER = 3.0  # times the budget
_GEMM_SIZE, _GEMM_ROUNDS = 8192, 500


def main() -> int:
    """Parts are done in order, each into FOLDER/part.json."""
    folder, order = Path(sys.argv[1]), json.loads(sys.argv[2])
    device = torch.device(order["device"])
    ends = time.monotonic() + order["seconds_left"]
    warnings.filterwarnings("ignore")  # nested tensors are a prototype, and say so at every call
    if device.type == "cuda":
        warm_up_clocks()
    write(folder / "machine.json", describe_gpu() if device.type == "cuda" else {})
    bench: DeviceBench = named(order["bench"])(device, order["seed"])
    for name, (function, budget_s, *arguments) in order["parts"].items():
        record = run_part(function, arguments, bench, budget_s, ends - time.monotonic())
        write(folder / f"{name}.json", record)
        print(f"{name}: {record['error'] or 'done'} ({record['seconds']:.1f} s)", flush=True)
        if device.type == "cuda" and not is_well():
            return DEVICE_IS_SICK
    return 0


def run_part(
    function: str, arguments: Sequence[Any], bench: DeviceBench, budget_s: float, seconds_left: float
) -> dict[str, Any]:
    """Its figures, or the error that ended it; and the contestants that failed in it."""
    started, bench.failures = time.monotonic(), {}
    result: dict[str, Any] | None = None
    error: str | None = None
    if seconds_left < budget_s / 2:
        error = f"not begun: {seconds_left:.0f} s were left"
    else:
        seconds = min(STOPPED_AFTER * budget_s, seconds_left)
        bench.ends = started + seconds
        try:
            with bench.mode(), deadline(seconds):
                result = named(function)(bench, *arguments)
        except Exception as failure:  # whatever it is, it belongs into the file, and the other parts go on
            traceback.print_exc()
            error = f"{type(failure).__name__}: {failure}"[:2000]
    return {
        "error": error,
        "seconds": time.monotonic() - started,
        "failures": bench.failures,
        "clocks_after": nvidia_smi(),
        "result": result,
    }


def is_well() -> bool:
    """Whether the device still works in this process; after an illegal access it never does again."""
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError as error:
        print(f"The device is unusable in this process: {error}", file=sys.stderr, flush=True)
        return False
    return True


def warm_up_clocks() -> None:
    """About a second of products: an idle device runs at a fraction of its clock."""
    a = torch.randn(_GEMM_SIZE, _GEMM_SIZE, device="cuda", dtype=torch.float16)
    for _ in range(_GEMM_ROUNDS):
        torch.mm(a, a)
    torch.cuda.synchronize()


def write(path: Path, record: dict[str, Any]) -> None:
    """Whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(finite(record), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    temporary.replace(path)


if __name__ == "__main__":
    sys.exit(main())
