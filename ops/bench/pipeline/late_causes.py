"""Causes of late answers beside the work of the members: stalls of the machine and of the broker."""

import time
from pathlib import Path
from typing import Any

from penstock.ops.bench.pipeline.broker_log import broker_pauses, segment_changes
from penstock.ops.bench.pipeline.stall_watch import StallWatch


class LateCauses:
    """Reads the broker's log, and what was watched while the load ran."""

    def __init__(self, broker_log: Path, watch: StallWatch) -> None:
        self._broker_log = broker_log
        self._watch = watch

    def between(self, start: float, seconds: float) -> dict[str, Any]:
        """For the load's record, each with its second since the start, which is of perf_counter."""
        since = time.time() - (time.perf_counter() - start)
        return {
            "broker_pauses": broker_pauses(self._broker_log, since, since + seconds),
            "segment_changes": segment_changes(self._broker_log, since, since + seconds),
            **self._watch.stalls_between(start, start + seconds),
        }
