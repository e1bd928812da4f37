"""Faults of the worker's processes."""

import asyncio
import contextlib
import os
import random
import signal
from pathlib import Path

from penstock.ops.chaos.faults.evidence import ENDED, STOPPED, comes_true, state
from penstock.ops.chaos.faults.not_injected import Effect, NotInjectedError
from penstock.ops.chaos.fleet.faulty_engine import HANG
from penstock.ops.chaos.fleet.faulty_member import CLOCK, seen_clock
from penstock.ops.chaos.fleet.worker_command import WorkerCommand

MOST_CLOCK_ERROR_S = 20.0
_SIGNALLED_S = 5.0  # a signal has had its effect
_ORPHANED_S = 30.0  # members have ended after their supervisor
_READ_LOG_S = 0.5
_CLOCK_S = 2.0  # between two steps


class MemberFaults:
    """Each method injects and undoes one fault, and returns what it did.

    It raises NotInjectedError or OSError if the fault did not happen.
    """

    def __init__(self, worker: WorkerCommand, folder: Path, outage_s: float, roll_s: float = 60.0) -> None:
        """`folder`: the members' control folder. `outage_s`: how long a member is away. `roll_s`: a roll, at most."""
        self._worker = worker
        self._folder = folder
        self._outage_s = outage_s
        self._roll_s = roll_s

    async def member_killed(self, rng: random.Random) -> Effect:
        """SIGKILL of one member."""
        pid = await self._signal_one(rng, signal.SIGKILL, ENDED)
        return {"pid": pid, "dead": True}

    async def member_suspended(self, rng: random.Random) -> Effect:
        """Longer than the session: Kafka gives its partitions away, and the member wakes up as a zombie."""
        pid = await self._signal_one(rng, signal.SIGSTOP, STOPPED)
        await asyncio.sleep(self._outage_s)
        found = state(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        if found not in (STOPPED, ENDED):  # another fault may have killed it
            raise NotInjectedError(f"The member was not suspended to the end: {found}.")
        return {"pid": pid, "suspended_s": self._outage_s, "then": "killed" if found == ENDED else "resumed"}

    async def supervisor_killed(self, rng: random.Random) -> Effect:
        """SIGKILL of the supervisor; its members end with it."""
        pid, members = self._worker.pid, self._worker.members
        self._signal_supervisor(signal.SIGKILL)
        if pid is None or not await comes_true(lambda: state(pid) == ENDED, _SIGNALLED_S):
            raise NotInjectedError("The supervisor did not end.")
        are_ended = await comes_true(lambda: all(state(member) == ENDED for member in members), _ORPHANED_S)
        return {"pid": pid, "dead": True, "members": len(members), "members_dead": are_ended}

    async def rolled(self, rng: random.Random) -> Effect:
        """Every member is replaced, one after another."""
        num_rolls, before = self._worker.num_events("roll_finished"), set(self._worker.members)
        self._signal_supervisor(signal.SIGHUP)
        is_over = comes_true(lambda: self._worker.num_events("roll_finished") > num_rolls, self._roll_s, _READ_LOG_S)
        if not await is_over:
            raise NotInjectedError(f"The roll did not finish within {self._roll_s:g} s.")
        return {"members_replaced": len(before - set(self._worker.members)), "members": len(before)}

    async def engine_hung(self, rng: random.Random) -> Effect:
        """The next batch of some member never ends; the member notices it and leaves its work to others."""
        before = set(self._worker.members)
        (self._folder / HANG).touch()
        await asyncio.sleep(self._outage_s)
        with contextlib.suppress(FileNotFoundError):  # a batch has removed it
            (self._folder / HANG).unlink()
            raise NotInjectedError("No member ran a batch.")
        return {"batch_hung": True, "members_ended": len(before - set(self._worker.members))}

    async def clock_stepped(self, rng: random.Random) -> Effect:
        """The time of day of all members is late, then early, then right again."""
        num_stepped = 0
        for offset_s in (rng.uniform(1, MOST_CLOCK_ERROR_S), -rng.uniform(1, MOST_CLOCK_ERROR_S), 0):
            (self._folder / CLOCK).write_text(f"{offset_s}")
            await asyncio.sleep(_CLOCK_S)
            if offset_s:
                num_stepped += sum(seen_clock(self._folder, pid) == offset_s for pid in self._worker.members)
        if not num_stepped:
            raise NotInjectedError("No member took the time.")
        return {"steps_of_members": num_stepped}

    async def _signal_one(self, rng: random.Random, number: signal.Signals, wanted: str) -> int:
        members = self._worker.members
        if not members:
            raise NotInjectedError("No member ran.")
        pid = rng.choice(members)
        if state(pid) == ENDED:
            raise NotInjectedError(f"Member {pid} had ended before.")
        os.kill(pid, number)
        if not await comes_true(lambda: state(pid) == wanted, _SIGNALLED_S):
            raise NotInjectedError(f"Member {pid} did not heed {number.name}.")
        return pid

    def _signal_supervisor(self, number: signal.Signals) -> None:
        if self._worker.pid is None:
            raise NotInjectedError("No supervisor ran.")
        self._worker.signal(number)
