"""Which members a command runs, on machines that are described."""

from typing import Any

import pytest

from penstock.worker.command import placements_for, standbys_for
from penstock.worker.settings import WorkerSettings
from penstock.worker.supervision.placement import Gpu, Machine

CPU = Machine((0, 1, 2, 3), ())
TWO_GPUS = Machine(tuple(range(12)), (Gpu("GPU-0", "A", None), Gpu("GPU-1", "B", None)))


def settings(**given: Any) -> WorkerSettings:
    return WorkerSettings.model_validate({"model": "minilm", "device": "auto", "engine": "padded", **given})


@pytest.mark.parametrize(
    ("machine", "given", "waiting"),
    [
        (TWO_GPUS, {}, [(6, 0), (7, 1)]),
        (TWO_GPUS, {"gpus": "1"}, [(5, 1)]),
        (TWO_GPUS, {"standby": "off"}, []),
        (TWO_GPUS, {"once": True}, []),
        (CPU, {"processes": 2}, []),
        (CPU, {"processes": 2, "standby": "on"}, [(2, None)]),
    ],
)
def test_one_member_more_waits_on_each_gpu(
    machine: Machine, given: dict[str, Any], waiting: list[tuple[int, int | None]]
) -> None:
    chosen = settings(**given)
    placements = placements_for(chosen, machine)
    found = standbys_for(chosen, placements)
    assert [(one.worker, one.gpu) for one in found] == waiting
    assert {one.cpus for one in found} <= {one.cpus for one in placements}
