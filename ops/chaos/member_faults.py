"""Faults of the worker's processes."""

import asyncio
import contextlib
import os
import random
import signal
from pathlib import Path

from penstock.ops.chaos.faulty_engine import HANG
from penstock.ops.chaos.faulty_member import CLOCK
from penstock.ops.chaos.not_injected import NotInjectedError
from penstock.ops.chaos.worker_command import WorkerCommand

MOST_CLOCK_ERROR_S = 20.0


class MemberFaults:
    """Each method injects and undoes one fault. It raises NotInjectedError or OSError if the fault did not happen."""

    def __init__(self, worker: WorkerCommand, folder: Path, outage_s: float, roll_s: float = 60.0) -> None:
        """`folder`: the members' control folder. `outage_s`: how long a member is away. `roll_s`: a roll, at most."""
        self._worker = worker
        self._folder = folder
        self._outage_s = outage_s
        self._roll_s = roll_s

    async def member_killed(self, rng: random.Random) -> None:
        """SIGKILL of one member."""
        self._signal_one(rng, signal.SIGKILL)

    async def member_suspended(self, rng: random.Random) -> None:
        """Longer than the session: Kafka gives its partitions away, and the member wakes up as a zombie."""
        pid = self._signal_one(rng, signal.SIGSTOP)
        await asyncio.sleep(self._outage_s)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    async def supervisor_killed(self, rng: random.Random) -> None:
        """SIGKILL of the supervisor; its members end with it."""
        self._signal_supervisor(signal.SIGKILL)

    async def rolled(self, rng: random.Random) -> None:
        """Every member is replaced, one after another."""
        num_rolls = len(self._worker.events("roll_finished"))
        self._signal_supervisor(signal.SIGHUP)
        try:
            async with asyncio.timeout(self._roll_s):
                while len(self._worker.events("roll_finished")) == num_rolls:  # noqa: ASYNC110 — a log has no event to wait for
                    await asyncio.sleep(0.5)
        except TimeoutError as error:
            raise NotInjectedError(f"The roll did not finish within {self._roll_s:g} s.") from error

    async def engine_hung(self, rng: random.Random) -> None:
        """The next batch of some member never ends; the member notices it and leaves its work to others."""
        (self._folder / HANG).touch()
        await asyncio.sleep(self._outage_s)
        with contextlib.suppress(FileNotFoundError):  # a batch has removed it
            (self._folder / HANG).unlink()
            raise NotInjectedError("No member ran a batch.")

    async def clock_stepped(self, rng: random.Random) -> None:
        """The time of day of all members is late, then early, then right again."""
        path = self._folder / CLOCK
        for offset_s in (rng.uniform(1, MOST_CLOCK_ERROR_S), -rng.uniform(1, MOST_CLOCK_ERROR_S), 0):
            path.write_text(f"{offset_s}")
            await asyncio.sleep(2)

    def _signal_one(self, rng: random.Random, number: signal.Signals) -> int:
        members = self._worker.members
        if not members:
            raise NotInjectedError("No member ran.")
        pid = rng.choice(members)
        os.kill(pid, number)
        return pid

    def _signal_supervisor(self, number: signal.Signals) -> None:
        if self._worker.pid is None:
            raise NotInjectedError("No supervisor ran.")
        self._worker.signal(number)
