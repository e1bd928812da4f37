"""The scheduler's settings."""

import math
from dataclasses import dataclass
from typing import Literal, get_args, get_type_hints

TriggerName = Literal["lazy", "hungry"]
PartitionName = Literal["auto", "dp", "fifo", "sorted", "naive", "none"]
OrderName = Literal["edf", "cost-first", "arrival"]
AdmissionName = Literal["accept", "deadline"]


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Policies of trigger, partition, order and admission, with their limits. ValueError names a bad field."""

    max_wait_s: float  # lazy: longest wait for a fuller batch
    max_batch_sequences: int
    max_batch_tokens: int  # a sequence longer than this runs alone
    slo_s: float | None  # from arrival to deadline, of online jobs without a deadline; None: they have none
    trigger: TriggerName = "lazy"
    partition: PartitionName = "auto"
    order: OrderName = "edf"
    admission: AdmissionName = "deadline"
    num_lanes: int = 1  # batches that run at the same time
    bulk_slice_s: float = 0.002  # how much longer online jobs may wait because of bulk work
    bulk_quiet_s: float = 60.0  # after so long without an online job, bulk runs in full batches
    window: int = 1024  # most jobs in one plan, which bounds its time; a full batch always fits

    def __post_init__(self) -> None:
        for name in ("max_wait_s", "bulk_quiet_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a finite number of seconds, 0 or more. Given: {getattr(self, name)}")
        if not 0 < self.bulk_slice_s < math.inf:
            raise ValueError(f"bulk_slice_s must be a finite number of seconds above 0. Given: {self.bulk_slice_s}")
        if self.slo_s is not None and not 0 < self.slo_s < math.inf:
            raise ValueError(f"slo_s must be a finite number of seconds above 0, or None. Given: {self.slo_s}")
        for name in ("max_batch_sequences", "max_batch_tokens", "num_lanes", "window"):
            if not 1 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be at least 1. Given: {getattr(self, name)}")
        for name in ("trigger", "partition", "order", "admission"):
            choices = get_args(get_type_hints(SchedulerSettings)[name])
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}. Given: {getattr(self, name)!r}")
