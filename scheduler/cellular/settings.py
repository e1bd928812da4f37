"""Settings of the cellular scheduler."""

import math
from dataclasses import dataclass

from penstock.scheduler.settings import AdmissionName


@dataclass(frozen=True, slots=True)
class CellSettings:
    """Devices, their state slots, and how far tasks are planned ahead. ValueError names a bad field."""

    num_devices: int = 1
    max_tasks: int = 2  # outstanding on a device: one runs, the others are prepared (BatchMaker's MaxTasksToSubmit)
    max_slots: int | None = None  # state slots of a device; None: no limit
    patience_s: float = 1.0  # a job is not overtaken by jobs of its class that arrive so much later, however urgent
    admission: AdmissionName = "accept"  # deadline: reject on arrival what is predicted to be late
    host_s: float = 0.0  # the caller's own seconds for a task, at first; a quantum that takes as long hides them

    def __post_init__(self) -> None:
        for name in ("num_devices", "max_tasks", "max_slots"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be 1 or more. Given: {value}")
        for name in ("patience_s", "host_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a finite number of seconds, 0 or more. Given: {getattr(self, name)}")
