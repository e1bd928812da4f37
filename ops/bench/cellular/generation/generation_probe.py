"""`python -m penstock.ops.bench.cellular.generation.generation_probe`: times generation on a GPU in 150 s.

Parts: a decoder step beside its floor; transformers' `generate` with static batches; our generator with requests that
join only at the start, and at every step; and both with requests that arrive. A part that fails loses only its own
figures. `--device cpu` runs the script's logic at tiny sizes; its times mean nothing.
"""

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from penstock.ops.bench.cellular.generation.generation_bed import ON_CPU, ON_GPU, Bed
from penstock.ops.bench.cellular.generation.generation_parts import parts_of
from penstock.ops.bench.cellular.generation.generation_ratios import ratios
from penstock.ops.bench.common.machine import describe_machine
from penstock.ops.bench.common.runs import RESULTS, begin, keep
from penstock.ops.bench.gpu.timing import deadline

SUITE = "generation"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0; 1 if a part failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of kept runs; default: ops/bench/results")
    parser.add_argument("--commit", help="commit that is measured, where there is no checkout")
    parser.add_argument("--time-limit-s", type=float, default=150.0)
    parser.add_argument("--seconds", type=float, help="of each measurement; default: by the device")
    parser.add_argument("--parts", help="some parts, separated by commas; default: all")
    chosen = parser.parse_args(arguments)
    is_gpu, ends = chosen.device == "cuda", time.monotonic() + chosen.time_limit_s
    sizes = ON_GPU if is_gpu else ON_CPU
    sizes = replace(sizes, seconds=chosen.seconds or sizes.seconds)
    bed = Bed(torch.device(chosen.device), sizes)
    if not is_gpu:
        torch.set_num_threads(1)  # operations are too small for more
    header, parts = begin(SUITE, _machine(is_gpu), commit=chosen.commit), parts_of(bed)
    names = chosen.parts.split(",") if chosen.parts else list(parts)
    written = chosen.output
    for name in names:
        most, work = parts[name]
        bed.results[name] = _run(name, min(most, ends - time.monotonic()), work)
        record = {**header, "device": chosen.device, "ratios": ratios(bed.results), "parts": bed.results}
        written = keep(record, chosen.output)
    failed = [name for name in names if bed.results[name]["error"]]
    print(json.dumps(ratios(bed.results), indent=1))
    print(f"failed parts: {failed or 'none'}; written to {written}", flush=True)
    return 1 if failed else 0


def _run(name: str, seconds: float, work: Callable[[], Any]) -> dict[str, Any]:
    """The result or the error of a part, within its seconds."""
    started = time.monotonic()
    record: dict[str, Any] = {"error": None, "result": None}
    try:
        if seconds < 1:
            raise TimeoutError("skipped: the time is up")
        with deadline(seconds):
            record["result"] = work()
    except Exception as error:
        record["error"] = f"{type(error).__name__}: {error}"
        traceback.print_exc(file=sys.stdout)
    record["seconds"] = round(time.monotonic() - started, 2)
    print(f"[{name}] {record['seconds']} s {record['error'] or json.dumps(record['result'])}", flush=True)
    return record


def _machine(is_gpu: bool) -> dict[str, Any]:
    machine = describe_machine()
    if not is_gpu:
        return machine
    from penstock.ops.bench.gpu.gpu_machine import describe_gpu

    gpu = describe_gpu()
    return {**machine, **gpu, "versions": {**machine["versions"], **gpu["versions"]}}


if __name__ == "__main__":
    sys.exit(main())
