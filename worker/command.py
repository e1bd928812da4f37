"""The members that `penstock worker` runs: one worker in this process, or a supervisor of several."""

import os
from collections.abc import Sequence
from importlib.util import find_spec

from penstock.worker.model_settings import NULL_MODEL
from penstock.worker.process_signals import ignore_resize_signals
from penstock.worker.settings import WorkerSettings
from penstock.worker.supervision.machine import this_machine
from penstock.worker.supervision.placement import CannotPlace, Machine, Placement, most_on_a_gpu, place, standbys
from penstock.worker.telemetry.logs import configure_logs


def run_members(settings: WorkerSettings) -> int:
    """Run the members that the settings ask for on this machine. Blocks; returns the exit code.

    Raises CannotPlace, CheckpointError for a model that is neither a directory nor an id, and what `process.run_worker`
    and `supervisor.supervise` raise.
    """
    ignore_resize_signals()  # until there is a supervisor that follows them
    configure_logs(settings.log_format, settings.log_level, settings.log_file)  # `this_machine` may warn
    settings.require_model()
    machine = this_machine()
    placements = placements_for(settings, machine)
    if len(placements) == 1:
        if settings.standby == "on":
            raise CannotPlace("--standby on: one member runs in this process, and nothing would replace it.")
        from penstock.worker.process import run_worker

        if placements[0].uuid is not None and len(machine.gpus) > 1:
            os.environ["CUDA_VISIBLE_DEVICES"] = placements[0].uuid
        return run_worker(settings)
    from penstock.worker.supervision.supervisor import supervise

    return supervise(settings, machine, placements, standbys_for(settings, placements))


def placements_for(settings: WorkerSettings, machine: Machine) -> list[Placement]:
    """Placement of the members, without starting them. Raises CannotPlace."""
    placements = place(machine, _gpus(settings, machine), settings.processes)
    num_sharing = most_on_a_gpu(placements)
    if settings.mps == "on" and num_sharing < 2:
        raise CannotPlace(f"--mps on: no two members share a GPU here; {num_sharing or 'none'} would run on one.")
    return placements


def standbys_for(settings: WorkerSettings, placements: Sequence[Placement]) -> list[Placement]:
    """Placement of the members that wait for the place of one that dies. By default, one waits on each GPU."""
    is_wanted = most_on_a_gpu(placements) > 0 if settings.standby == "auto" else settings.standby == "on"
    return standbys(placements) if is_wanted and not settings.once else []


def _gpus(settings: WorkerSettings, machine: Machine) -> Sequence[int]:
    """Numbers of the GPUs that members are placed on; none: they run on the CPU."""
    if settings.gpus != "all":
        if settings.device == "cpu":
            raise CannotPlace(f"--gpus {settings.gpus} contradicts --device cpu. Leave one of them out.")
        return [int(number) for number in settings.gpus.split(",")]
    has_kernels = settings.engine == "padded" or find_spec("cupy") is not None
    if settings.model == NULL_MODEL or settings.device == "cpu" or (settings.device == "auto" and not has_kernels):
        return []
    return range(len(machine.gpus))
