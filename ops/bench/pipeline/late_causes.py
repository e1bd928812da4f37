"""Causes of late answers beside the work of the members: stalls of the machine and of the brokers."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.ops.bench.pipeline.broker_log import broker_pauses, segment_changes
from penstock.ops.bench.pipeline.stall_watch import StallWatch


class LateCauses:
    """Reads the brokers' logs, and what was watched while the load ran."""

    def __init__(self, broker_logs: Sequence[Path], bootstrap_servers: str) -> None:
        self._broker_logs = broker_logs
        self._bootstrap_servers = bootstrap_servers
        self._watch: StallWatch | None = None  # of the last load

    @contextmanager
    def watched(self, is_open_loop: bool) -> Iterator[None]:
        """Around a load. A closed loop is not watched: on two cores the watch takes 7 % of its throughput."""
        self._watch = None
        if not is_open_loop:
            yield
            return
        with StallWatch(self._bootstrap_servers) as self._watch:
            yield

    def between(self, start: float, seconds: float) -> dict[str, Any]:
        """For the load's record, each with its second since the start, which is of perf_counter."""
        since = time.time() - (time.perf_counter() - start)
        until = since + seconds
        stalls = {} if self._watch is None else self._watch.stalls_between(start, start + seconds)
        return {
            "broker_pauses": [pause for log in self._broker_logs for pause in broker_pauses(log, since, until)],
            "segment_changes": [change for log in self._broker_logs for change in segment_changes(log, since, until)],
            **stalls,
        }
