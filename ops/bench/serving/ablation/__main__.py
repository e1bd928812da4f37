"""Ablation of the scheduler: each mechanism with, without and simpler.

    python -m penstock.ops.bench.serving.ablation [--real] [--only NAME ...]

Runs are simulated on the kept cost tables; with `--real` they run in real time on this machine's CPU, some two minutes
a variant and seed. The scheduler learns from batches as a worker does. The figures are kept as a run of the suite
`ablation`; `make figures` writes them into scheduler/ABLATION.md.
"""

import argparse
import json
import time
from collections.abc import Mapping

import numpy as np

from penstock.ops.bench.common.machine import describe_machine
from penstock.ops.bench.common.runs import begin, keep
from penstock.ops.bench.serving.ablation.devices import KEPT, Device, RealDevice, SimulatedDevice
from penstock.ops.bench.serving.ablation.scenarios import Figures, measure
from penstock.ops.bench.serving.ablation.variants import VARIANTS
from penstock.ops.bench.serving.harness.harness import BenchHarness
from penstock.ops.demo.demo_model import model_directory

_SECONDS = 10.0  # of a real run at saturation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(VARIANTS), help="variants")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--real", action="store_true", help="run in real time on this machine's CPU; simulate nothing")
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="of a real run at saturation")
    parser.add_argument("--dry", action="store_true", help="print, and keep nothing")
    chosen = parser.parse_args()
    header = begin("ablation", describe_machine())
    devices = _real(chosen.seconds) if chosen.real else _simulated()
    parts: dict[str, dict[str, Figures]] = {}
    if chosen.real:  # what a process does once, such as compilation, falls into no row
        for packed, padded in devices.values():
            measure(packed, padded, seed=0)
    for variant in chosen.only:
        for name, (packed, padded) in devices.items():
            began = time.monotonic()
            with VARIANTS[variant]():
                found = [measure(packed, padded, seed) for seed in range(chosen.seeds)]
            parts.setdefault(variant, {})[name] = {key: float(np.mean([one[key] for one in found])) for key in found[0]}
            print(f"{variant}, {name}: {time.monotonic() - began:.0f} s", flush=True)
        if not chosen.dry:
            keep({**header, "parts": parts})
    if chosen.dry:
        print(json.dumps(parts, indent=1))


def _simulated() -> Mapping[str, tuple[Device, Device]]:
    """The packed engine of each kept run, and the padded one."""
    return {name: (SimulatedDevice.kept(name, "packed"), SimulatedDevice.kept(name, "padded")) for name in KEPT}


def _real(seconds: float) -> Mapping[str, tuple[Device, Device]]:
    """The same of this machine's CPU."""
    bench = BenchHarness.load(model_directory(), device="cpu", dtype="auto")
    packed, padded = (RealDevice.measured(bench, kind, seconds) for kind in ("packed", "padded"))
    return {"CPU, real runs": (packed, padded)}


if __name__ == "__main__":
    main()
