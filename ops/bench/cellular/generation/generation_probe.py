"""`python -m penstock.ops.bench.cellular.generation.generation_probe`: times generation on a GPU in 150 s.

Parts: a decoder step beside its floor; transformers' `generate` with static batches; our generator with requests that
join only at the start, and at every step; and both with requests that arrive. A part that fails loses only its own
figures. `--device cpu` runs the script's logic at tiny sizes; its times mean nothing.
"""

import argparse
import json
import os
import platform
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
from penstock.ops.bench.gpu.timing import deadline


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0; 1 if a part failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--output", type=Path, default=Path(os.environ.get("OUT", ".")), help="folder of the JSON file")
    parser.add_argument("--time-limit-s", type=float, default=150.0)
    parser.add_argument("--seconds", type=float, help="of each measurement; default: by the device")
    parser.add_argument("--parts", help="some parts, separated by commas; default: all")
    chosen = parser.parse_args(arguments)
    is_gpu, ends = chosen.device == "cuda", time.monotonic() + chosen.time_limit_s
    output = chosen.output / "generation_probe.json"
    sizes = ON_GPU if is_gpu else ON_CPU
    sizes = replace(sizes, seconds=chosen.seconds or sizes.seconds)
    bed = Bed(torch.device(chosen.device), sizes)
    if not is_gpu:
        torch.set_num_threads(1)  # operations are too small for more
    machine, parts = _machine(is_gpu), parts_of(bed)
    names = chosen.parts.split(",") if chosen.parts else list(parts)
    for name in names:
        most, work = parts[name]
        bed.results[name] = _run(name, min(most, ends - time.monotonic()), work)
        output.write_text(
            json.dumps({"machine": machine, "ratios": ratios(bed.results), **bed.results}, indent=1), encoding="utf-8"
        )
    failed = [name for name in names if bed.results[name]["error"]]
    print(json.dumps(ratios(bed.results), indent=1))
    print(f"failed parts: {failed or 'none'}; written to {output}", flush=True)
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
    described: dict[str, Any] = {"python": platform.python_version(), "torch": torch.__version__}
    return described | ({"gpu": torch.cuda.get_device_name()} if is_gpu else {})


if __name__ == "__main__":
    sys.exit(main())
