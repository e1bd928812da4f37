"""Notices a turn of a step runner that does not end: the engine hangs, and the worker must leave its work to others."""

from collections.abc import Callable, Iterable
from typing import Protocol

from penstock.worker.batching.watchdog import EngineHung, Watchdog


class Turns(Protocol):
    """The part of `StepThread` that is watched."""

    num_turns: int
    is_running: bool

    @property
    def predicted_s(self) -> float: ...


class StepWatchdog(Watchdog):
    """Watches the turn that runs."""

    def __init__(self, thread: Turns, clock: Callable[[], float], hung: Callable[[EngineHung], None]) -> None:
        super().__init__(clock, hung)
        self._thread = thread
        self._turn = -1
        self._run_s = 0.0

    def _running(self, passed_s: float) -> Iterable[tuple[str, float, float]]:
        is_same = self._thread.is_running and self._thread.num_turns == self._turn
        self._run_s = self._run_s + passed_s if is_same else 0.0
        self._turn = self._thread.num_turns
        yield "A turn of steps", self._run_s, self._thread.predicted_s
