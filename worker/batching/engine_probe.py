"""A one-token batch for an idle engine: `/livez` must notice an engine that hangs before requests do."""

import asyncio

from penstock.engine import EngineLanes
from penstock.engine.errors import LanesClosed
from penstock.engine.types import BatchOutput, PackedBatch, TaskOptions

IDLE_S = 30.0  # a batch that ended within this time is sign enough; the watchdog looks after a batch that runs
PROBE_S = 5.0  # far beyond one token, also on a processor that others share
LOOP_S = 1.0  # beyond that, for the event loop to say so


class EngineProbe:
    """Runs one token through an engine that has had nothing to do. Bound to the event loop of the lanes."""

    def __init__(self, lanes: EngineLanes, task: str) -> None:
        """`task`: one that the model can do."""
        self._loop = asyncio.get_running_loop()
        self._lanes = lanes
        self._batch = PackedBatch.probe(TaskOptions(task))
        self._running: asyncio.Future[BatchOutput] | None = None

    def fault(self) -> str:
        """Why the engine does not work; empty if it does. Called from a thread, for `PROBE_S + LOOP_S` at most."""
        asking = asyncio.run_coroutine_threadsafe(self._ask(), self._loop)
        try:
            return asking.result(PROBE_S + LOOP_S)
        except TimeoutError:
            asking.cancel()
            return "the event loop stands still"
        except LanesClosed:  # the worker has stopped
            return ""

    async def _ask(self) -> str:
        if self._running is None or self._running.done():
            idle_s = self._lanes.idle_s
            if idle_s is None or idle_s < IDLE_S:
                return ""
            self._running = self._lanes.submit(self._batch)
        ended, _ = await asyncio.wait((self._running,), timeout=PROBE_S)
        if not ended:
            return f"the idle engine has not computed one token for {PROBE_S:g} s"
        error = self._running.exception()
        if error is not None:
            return f"the idle engine fails on one token: {error!r}"
        return "the idle engine's result for one token is not finite" if self._running.result().not_finite else ""
