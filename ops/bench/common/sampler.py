"""Sampling profiler of the own process: the stack of the main thread every few milliseconds of processor time.

The kernel's profiling timer counts the processor time of all threads and sends SIGPROF. Python runs the handler in the
main thread, between two bytecodes. Time inside a C function therefore counts for the Python function that called it,
and the C code of the event loop, with its system calls, for the function that runs the loop. Idle time is not sampled.
Garbage collections run longer than the timer's period and would be missed, so each is timed instead.
"""

import gc
import json
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

_INTERVAL_S = 0.001  # kernels round it up to their tick, often 4 ms
_DEPTH = 24

Stack = tuple[str, ...]  # "module:function", innermost first


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of one process."""

    stacks: Counter[Stack]  # with the number of samples
    gc_s: float  # processor seconds in garbage collections, which are not in the stacks


class Sampler:
    """Samples this process from `start` to `stop`. One per process; constructed in the main thread."""

    def __init__(self) -> None:
        self._stacks: Counter[Stack] = Counter()
        self._gc_s = 0.0
        self._gc_started = 0.0
        signal.signal(signal.SIGPROF, self._sample)

    def start(self) -> None:
        gc.callbacks.append(self._collecting)
        signal.setitimer(signal.ITIMER_PROF, _INTERVAL_S, _INTERVAL_S)

    def stop(self) -> None:
        """Call it before the interpreter ends: without the handler, the next signal would kill the process."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        if self._collecting in gc.callbacks:
            gc.callbacks.remove(self._collecting)

    def write(self, path: Path) -> None:
        """Write the samples as JSON, for `read_samples`."""
        stacks = [[stack, count] for stack, count in self._stacks.items()]
        path.write_text(json.dumps({"gc_s": self._gc_s, "stacks": stacks}), encoding="utf-8")

    def _sample(self, _signal: int, frame: FrameType | None) -> None:
        stack: list[str] = []
        if frame is not None and frame.f_back is not None and frame.f_lineno == frame.f_code.co_firstlineno:
            frame = frame.f_back  # no line of it has run: the time belongs to the caller
        while frame is not None and len(stack) < _DEPTH:
            stack.append(f"{frame.f_globals.get('__name__')}:{frame.f_code.co_name}")
            frame = frame.f_back
        self._stacks[tuple(stack)] += 1

    def _collecting(self, phase: str, _info: dict[str, int]) -> None:
        now = time.thread_time()
        if phase == "start":
            self._gc_started = now
        else:
            self._gc_s += now - self._gc_started


def read_samples(path: Path) -> Samples:
    """Read a file of `Sampler.write`."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return Samples(Counter({tuple(stack): count for stack, count in data["stacks"]}), data["gc_s"])
