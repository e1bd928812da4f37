"""Faults of the worker's processes."""

import asyncio
import contextlib
import os
import random
import signal
from pathlib import Path

from penstock.ops.chaos.faulty_engine import HANG
from penstock.ops.chaos.faulty_member import CLOCK
from penstock.ops.chaos.worker_command import WorkerCommand

MOST_CLOCK_ERROR_S = 20.0
_ROLL_S = 60.0


class MemberFaults:
    """Each method injects and undoes one fault."""

    def __init__(self, worker: WorkerCommand, folder: Path, outage_s: float) -> None:
        """`folder`: the members' control folder. `outage_s`: how long a member is away."""
        self._worker = worker
        self._folder = folder
        self._outage_s = outage_s

    async def member_killed(self, rng: random.Random) -> None:
        """SIGKILL of one member."""
        self._signal_one(rng, signal.SIGKILL)

    async def member_suspended(self, rng: random.Random) -> None:
        """Longer than the session: Kafka gives its partitions away, and the member wakes up as a zombie."""
        pid = self._signal_one(rng, signal.SIGSTOP)
        await asyncio.sleep(self._outage_s)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    async def supervisor_killed(self, rng: random.Random) -> None:
        """SIGKILL of the supervisor; its members end with it."""
        self._worker.signal(signal.SIGKILL)

    async def rolled(self, rng: random.Random) -> None:
        """Every member is replaced, one after another."""
        num_rolls = len(self._worker.events("roll_finished"))
        self._worker.signal(signal.SIGHUP)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ROLL_S):
                while len(self._worker.events("roll_finished")) == num_rolls:  # noqa: ASYNC110 — a log has no event to wait for
                    await asyncio.sleep(0.5)

    async def engine_hung(self, rng: random.Random) -> None:
        """The next batch of some member never ends; the member notices it and leaves its work to others."""
        (self._folder / HANG).touch()
        await asyncio.sleep(self._outage_s)
        (self._folder / HANG).unlink(missing_ok=True)

    async def clock_stepped(self, rng: random.Random) -> None:
        """The time of day of all members is late, then early, then right again."""
        path = self._folder / CLOCK
        for offset_s in (rng.uniform(1, MOST_CLOCK_ERROR_S), -rng.uniform(1, MOST_CLOCK_ERROR_S), 0):
            path.write_text(f"{offset_s}")
            await asyncio.sleep(2)

    def _signal_one(self, rng: random.Random, number: signal.Signals) -> int | None:
        members = self._worker.members
        if not members:
            return None
        pid = rng.choice(members)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        return pid
