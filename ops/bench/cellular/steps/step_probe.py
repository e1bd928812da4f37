"""`python -m penstock.ops.bench.cellular.steps.step_probe`: checks and times LSTM cells on a GPU, within two minutes.

Parts: checks against torch; a step beside its product; a closed loop of sentences; nn.LSTM on the same sentences. A
part that fails loses only its own figures: after an error that the device keeps, a new process runs the other parts.
`--device cpu` runs the script's logic at tiny sizes; its times mean nothing.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from penstock.ops.bench.cellular.steps.probe import ON_CPU, ON_GPU, Probe
from penstock.ops.bench.cellular.steps.step_parts import parts_of
from penstock.ops.bench.cellular.steps.step_summary import show_summary


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0; 1 if a part failed or a check did not pass."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--output", type=Path, default=Path(os.environ.get("OUT", ".")), help="folder of the JSON file")
    parser.add_argument("--time-limit-s", type=float, default=120.0)
    parser.add_argument("--resumed", action="store_true", help="keep the parts that the output file has")
    chosen = parser.parse_args(arguments)
    is_gpu = chosen.device == "cuda"
    output = chosen.output / "step_probe.json"
    ends = time.monotonic() + chosen.time_limit_s
    probe = Probe(torch.device(chosen.device), ON_GPU if is_gpu else ON_CPU, ends, output)
    if chosen.resumed:
        probe.results = json.loads(output.read_text(encoding="utf-8"))
    else:
        probe.results["machine"] = _machine(is_gpu)
    for name, (seconds, work) in parts_of(probe).items():
        if name not in probe.results:
            probe.part(name, seconds, work)
            if not probe.is_device_usable():
                return _resume(chosen.output, ends)
    return show_summary(probe)


def _resume(output: Path, ends: float) -> int:
    """Run the parts that are left in a new process, whose exit code this is."""
    left_s = ends - time.monotonic()
    command = [sys.executable, "-m", "penstock.ops.bench.cellular.steps.step_probe", "--resumed"]
    print("The device has failed: a new process runs the other parts.", flush=True)
    return subprocess.run([*command, "--output", output, "--time-limit-s", str(left_s)]).returncode


def _machine(is_gpu: bool) -> dict[str, Any]:
    described: dict[str, Any] = {"python": platform.python_version(), "torch": torch.__version__}
    if is_gpu:
        described |= {"gpu": torch.cuda.get_device_name(), "cudnn": torch.backends.cudnn.version()}  # type: ignore[no-untyped-call]  # torch
    return described


if __name__ == "__main__":
    sys.exit(main())
