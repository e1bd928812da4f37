"""A worker as a child process, with its log. It never outlives its parent: the demo, or a job with `--local`."""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from penstock.ops.kafka.owned import StartGate

STOP_TIMEOUT_S = 10.0
_TAIL_LINES = 15
# The console script `penstock`, without a search of PATH.
_PENSTOCK = "from penstock.ops.cli.main import main; main()"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Batches:
    """Totals of one log."""

    count: int
    sequences: int
    tokens: int
    padded_tokens: int  # tokens of the same batches with each sequence padded to the longest of its batch
    triggers: dict[str, float]  # trigger -> share of the batches that are logged, most frequent first

    @property
    def padding_avoided(self) -> float:
        """Fraction of `padded_tokens` that would be padding."""
        return 1 - self.tokens / self.padded_tokens if self.padded_tokens else 0.0


class WorkerFailed(Exception):
    """The worker ended too early. The message holds the end of its log."""


class WorkerProcess:
    """`penstock worker` with the given arguments, logging JSON to `log_path`. An async context manager."""

    def __init__(self, arguments: list[str], log_path: Path, environment: Mapping[str, str] | None = None) -> None:
        """`environment`: of the process; None: this one's."""
        self._arguments = arguments
        self.log_path = log_path
        self._environment = environment
        self._guard: subprocess.Popen[bytes] | None = None
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        return self._running.pid

    async def __aenter__(self) -> Self:
        with self.log_path.open("wb") as log, StartGate() as gate:
            # In its own session, Ctrl-C in the terminal reaches only the demo, which then stops the worker.
            self._process = await asyncio.create_subprocess_exec(
                *gate.held(sys.executable, "-c", _PENSTOCK, "worker", *self._arguments),
                stdin=gate.stdin,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )
            self._guard = gate.guard(self._process.pid)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._running.returncode is None:
                await self._stop(self._running)
        finally:
            if self._guard is not None:
                self._guard.kill()
                self._guard.communicate()

    async def _stop(self, process: asyncio.subprocess.Process) -> None:
        try:
            process.terminate()
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            pass  # killed below
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def while_alive(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`. If the worker ends first, cancel `work` and raise WorkerFailed."""
        task = asyncio.ensure_future(work)
        ended = asyncio.ensure_future(self._running.wait())
        try:
            await asyncio.wait((task, ended), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise WorkerFailed(f"The worker ended with exit status {ended.result()}.\n{self.log_tail()}")
        finally:
            task.cancel()
            ended.cancel()
            await asyncio.gather(task, ended, return_exceptions=True)

    def events(self, name: str = "") -> list[dict[str, Any]]:
        """The events in the log so far, or those of one name. A library may have written other lines between them."""
        found = []
        for line in self.log_path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError, RecursionError):  # no JSON, or not all of it yet
                event = json.loads(line)
                if isinstance(event, dict) and name in ("", event.get("event")):
                    found.append(event)
        return found

    def batches(self) -> Batches:
        """Add up the loads in the log, which count all batches. Of a busy worker not all are logged."""
        loads = self.events("worker_load")
        count, sequences, tokens, padded_tokens = (
            sum(load[name] for load in loads) for name in ("batches", "sequences", "tokens", "padded_tokens")
        )
        triggers = Counter(event["trigger"] for event in self.events("batch_done"))
        shares = {name: of_trigger / triggers.total() for name, of_trigger in triggers.most_common()}
        return Batches(count, sequences, tokens, padded_tokens, shares)

    def log_tail(self) -> str:
        """The last lines of the worker's log."""
        lines = self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join([f"The end of its log, {self.log_path}:", *lines[-_TAIL_LINES:]])

    @property
    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RuntimeError("WorkerProcess was used outside its context. This is a bug.")
        return self._process
