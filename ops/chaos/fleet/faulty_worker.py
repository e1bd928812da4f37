"""`penstock worker` whose members have a `FaultyEngine` and a clock that steps: `python -m …faulty_worker FOLDER SEED`.

These are followed by `worker` and its options, or by the arguments of a member. All else is the product's.
"""

import os
import sys
import threading
import time
from pathlib import Path

from penstock.ops.chaos.fleet.faulty_engine import FaultyEngine
from penstock.ops.cli.main import main
from penstock.worker import process
from penstock.worker.batching import watchdog
from penstock.worker.model_settings import NULL_MODEL, ModelSettings
from penstock.worker.resolved_settings import ResolvedSettings
from penstock.worker.supervision import member, member_process

CLOCK = "clock"  # a file in the control folder: seconds by which the time of day is wrong
HANG_S = 5.0
_LOOK_EVERY_S = 0.25


def seen_clock(control: Path, pid: int) -> float | None:
    """The seconds by which the time of day of a member is wrong. None if it has told none."""
    path = _seen_path(control, pid)
    return float(path.read_text() or 0) if path.exists() else None


def _seen_path(control: Path, pid: int) -> Path:
    return control / f"{CLOCK}-{pid}"


def _install(control: Path, seed: int) -> None:
    measure = process._cost

    def load_faulty(settings: ModelSettings) -> FaultyEngine:
        return FaultyEngine(settings.served_name or NULL_MODEL, control, seed + os.getpid())

    def measure_then_fail(engine: FaultyEngine, settings: ResolvedSettings, device_share: float) -> object:
        cost = measure(engine, settings, device_share)
        engine.is_faulty = True
        return cost

    process.load = load_faulty
    process._cost = measure_then_fail  # type: ignore[assignment]  # called with a FaultyEngine only
    watchdog.HANG_S = HANG_S


def _step_clock(control: Path) -> None:
    """Make the time of day of this process follow the file CLOCK. Timers use another clock, as on a real machine."""
    true_time, offset_s = time.time, 0.0
    time.time = lambda: true_time() + offset_s

    def follow() -> None:
        nonlocal offset_s
        while True:
            path = control / CLOCK
            offset_s = float(path.read_text() or 0) if path.exists() else 0.0
            _seen_path(control, os.getpid()).write_text(f"{offset_s}")
            time.sleep(_LOOK_EVERY_S)

    threading.Thread(target=follow, name="clock", daemon=True).start()


if __name__ == "__main__":
    folder, seed = sys.argv.pop(1), sys.argv.pop(1)
    if sys.argv[1] == "worker":
        member_process.MEMBER = (sys.executable, "-m", "penstock.ops.chaos.fleet.faulty_worker", folder, seed)
        main()
    else:
        _install(Path(folder), int(seed))
        _step_clock(Path(folder))
        sys.exit(member.main())
