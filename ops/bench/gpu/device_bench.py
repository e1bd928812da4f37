"""What the parts of a suite share in the process that measures."""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from penstock.ops.bench.gpu.timing import DeadlinePassed


class DeviceBench:
    """The device, and the failures of one part. Parts run one after another."""

    def __init__(self, device: torch.device, seed: int) -> None:
        self.device, self.seed = device, seed
        self.failures: dict[str, dict[str, Any]] = {}  # contestant -> first error, where, how often
        self.ends = math.inf  # of the part, by time.monotonic()

    def mode(self) -> AbstractContextManager[object]:
        """Surrounds each part."""
        return nullcontext()

    @contextmanager
    def guarded(self, name: str, where: str) -> Iterator[None]:
        """Record the failure of one contestant; the others go on."""
        try:
            yield
        except DeadlinePassed:
            raise
        except Exception as error:
            told = f"{type(error).__name__}: {error}"[:600]
            known = self.failures.setdefault(name, {"error": told, "where": where, "count": 0})
            known["count"] += 1
