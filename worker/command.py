"""What `penstock worker` runs: one worker in this process, or a supervisor of several."""

import os
from collections.abc import Sequence
from importlib.util import find_spec

from penstock.worker.settings import NULL_MODEL, WorkerSettings
from penstock.worker.supervision.machine import this_machine
from penstock.worker.supervision.placement import Machine, Placement, place


def serve(settings: WorkerSettings) -> int:
    """Run the members that the settings ask for on this machine. Blocks; returns the exit code.

    Raises CannotPlace, and what `process.serve` and `supervisor.supervise` raise.
    """
    machine = this_machine()
    placements = placements_for(settings, machine)
    if len(placements) == 1:
        from penstock.worker.process import serve as run

        if placements[0].uuid is not None and len(machine.gpus) > 1:
            os.environ["CUDA_VISIBLE_DEVICES"] = placements[0].uuid
        return run(settings)
    from penstock.worker.supervision.supervisor import supervise

    return supervise(settings, machine, placements)


def placements_for(settings: WorkerSettings, machine: Machine) -> list[Placement]:
    """Where the members would run. Raises CannotPlace."""
    return place(machine, _gpus(settings, machine), settings.processes)


def _gpus(settings: WorkerSettings, machine: Machine) -> Sequence[int]:
    """Numbers of the GPUs that members are placed on; none: they run on the CPU."""
    if settings.gpus != "all":
        return [int(number) for number in settings.gpus.split(",")]
    has_kernels = settings.engine == "padded" or find_spec("cupy") is not None
    if settings.model == NULL_MODEL or settings.device == "cpu" or (settings.device == "auto" and not has_kernels):
        return []
    return range(len(machine.gpus))
