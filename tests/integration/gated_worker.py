"""`penstock worker` on a CPU, whose batches end when the file ECHO_GATE is there. Those of the start end at once.

Run as a program by the tests; settings come from the environment.
"""

import os
import sys
import time
from pathlib import Path

from penstock.engine.cpu.engine import CpuEngine
from penstock.engine.types import BatchOutput, PackedBatch
from penstock.scheduler import LearnedCost
from penstock.worker import WorkerSettings, process
from penstock.worker.resolved_settings import ResolvedSettings

GATE, REACHED = Path(os.environ["ECHO_GATE"]), Path(os.environ["ECHO_GATE"] + ".reached")

if __name__ == "__main__":
    run, cost_of = CpuEngine.run, process._cost

    def wait_then_run(engine: CpuEngine, batch: PackedBatch) -> BatchOutput:
        REACHED.touch()
        while not GATE.exists():
            time.sleep(0.02)
        return run(engine, batch)

    def measure_then_wait(engine: CpuEngine, settings: ResolvedSettings, device_share: float) -> LearnedCost:
        cost = cost_of(engine, settings, device_share)
        CpuEngine.run = wait_then_run  # type: ignore[assignment,method-assign]  # the whole worker, but for its time
        return cost

    process._cost = measure_then_wait  # type: ignore[assignment]  # called with a CpuEngine only
    sys.exit(process.run_worker(WorkerSettings()))  # type: ignore[call-arg]  # all come from the environment
