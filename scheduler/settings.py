"""The scheduler's settings."""

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """When to run and how much at once. Raises ValueError for a limit that no job could meet."""

    max_wait_s: float  # lazy: longest wait for batch mates
    max_batch_sequences: int
    max_batch_tokens: int  # a sequence longer than this runs alone
    slo_s: float  # lazy: latency objective, half of which is left to the run and what follows it
    trigger: Literal["lazy", "hungry"] = "lazy"
    window: int = 1024  # most jobs in one plan, which bounds the time to make it; a full batch always fits

    def __post_init__(self) -> None:
        if not 0 <= self.max_wait_s < math.inf:
            raise ValueError(f"max_wait_s must be a finite number of seconds, 0 or more. Given: {self.max_wait_s}")
        if not 0 < self.slo_s < math.inf:
            raise ValueError(f"slo_s must be a finite number of seconds above 0. Given: {self.slo_s}")
        for name in ("max_batch_sequences", "max_batch_tokens", "window"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1. Given: {getattr(self, name)}")
        if self.trigger not in ("lazy", "hungry"):
            raise ValueError(f"trigger must be 'lazy' or 'hungry'. Given: {self.trigger!r}")
