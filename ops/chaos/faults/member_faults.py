"""Faults of the worker's processes."""

import asyncio
import contextlib
import os
import random
import signal

from penstock.ops.chaos.faults.scene import ENDED, STOPPED, Effect, NotInjectedError, Scene, comes_true, state
from penstock.ops.chaos.fleet.faulty_engine import HANG
from penstock.ops.chaos.fleet.faulty_worker import CLOCK, seen_clock

MOST_CLOCK_ERROR_S = 20.0
_SIGNALLED_S = 5.0  # a signal has had its effect
_ORPHANED_S = 30.0  # members have ended after their supervisor
_ROLL_S = 600.0  # a roll, at most: its members load one after another, for minutes on a busy machine
_READ_LOG_S = 0.5
_CLOCK_S = 2.0  # between two steps


async def member_killed(scene: Scene, rng: random.Random) -> Effect:
    """SIGKILL of one member."""
    pid = await _signal_one(scene, rng, signal.SIGKILL, ENDED)
    return {"pid": pid, "dead": True}


async def member_suspended(scene: Scene, rng: random.Random) -> Effect:
    """Longer than the session: Kafka gives its partitions away, and the member wakes up as a zombie."""
    pid = await _signal_one(scene, rng, signal.SIGSTOP, STOPPED)
    await asyncio.sleep(scene.outage_s)
    found = state(pid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
    if found not in (STOPPED, ENDED):  # another fault may have killed it
        raise NotInjectedError(f"The member was not suspended to the end: {found}.")
    return {"pid": pid, "suspended_s": scene.outage_s, "then": "killed" if found == ENDED else "resumed"}


async def supervisor_killed(scene: Scene, rng: random.Random) -> Effect:
    """SIGKILL of the supervisor; its members end with it."""
    members, pid = scene.worker.members, _signal_supervisor(scene, signal.SIGKILL)
    if not await comes_true(lambda: state(pid) == ENDED, _SIGNALLED_S):
        raise NotInjectedError("The supervisor did not end.")
    are_ended = await comes_true(lambda: all(state(member) == ENDED for member in members), _ORPHANED_S)
    return {"pid": pid, "dead": True, "members": len(members), "members_dead": are_ended}


async def rolled(scene: Scene, rng: random.Random) -> Effect:
    """Every member is replaced, one after another, until the supervisor tells the end of it."""
    worker = scene.worker
    num_finished, num_failed = worker.num_events("roll_finished"), worker.num_events("roll_failed")
    before, pid = set(worker.members), _signal_supervisor(scene, signal.SIGHUP)

    def error() -> str | None:
        """None while it rolls; empty if it has ended well."""
        if worker.num_events("roll_finished") > num_finished:
            return "" if before - set(worker.members) else "No member was replaced."
        if worker.num_events("roll_failed") > num_failed:
            return "The roll failed."
        return None if worker.pid == pid else "The supervisor ended."

    if not await comes_true(lambda: error() is not None, _ROLL_S, _READ_LOG_S):
        raise NotInjectedError(f"The roll did not finish within {_ROLL_S:g} s.")
    if found := error():
        raise NotInjectedError(found)
    return {"members_replaced": len(before - set(worker.members)), "members": len(before)}


async def engine_hung(scene: Scene, rng: random.Random) -> Effect:
    """The next batch of some member never ends; the member notices it and leaves its work to others."""
    before = set(scene.worker.members)
    (scene.folder / HANG).touch()
    await asyncio.sleep(scene.outage_s)
    with contextlib.suppress(FileNotFoundError):  # a batch has removed it
        (scene.folder / HANG).unlink()
        raise NotInjectedError("No member ran a batch.")
    return {"batch_hung": True, "members_ended": len(before - set(scene.worker.members))}


async def clock_stepped(scene: Scene, rng: random.Random) -> Effect:
    """The time of day of all members is late, then early, then right again."""
    num_stepped = 0
    for offset_s in (rng.uniform(1, MOST_CLOCK_ERROR_S), -rng.uniform(1, MOST_CLOCK_ERROR_S), 0):
        (scene.folder / CLOCK).write_text(f"{offset_s}")
        await asyncio.sleep(_CLOCK_S)
        if offset_s:
            num_stepped += sum(seen_clock(scene.folder, pid) == offset_s for pid in scene.worker.members)
    if not num_stepped:
        raise NotInjectedError("No member took the time.")
    return {"steps_of_members": num_stepped}


async def _signal_one(scene: Scene, rng: random.Random, number: signal.Signals, wanted: str) -> int:
    members = scene.worker.members
    if not members:
        raise NotInjectedError("No member ran.")
    pid = rng.choice(members)
    if state(pid) == ENDED:
        raise NotInjectedError(f"Member {pid} had ended before.")
    os.kill(pid, number)
    if not await comes_true(lambda: state(pid) == wanted, _SIGNALLED_S):
        raise NotInjectedError(f"Member {pid} did not heed {number.name}.")
    return pid


def _signal_supervisor(scene: Scene, number: signal.Signals) -> int:
    pid = scene.worker.pid
    if pid is None:
        raise NotInjectedError("No supervisor ran.")
    scene.worker.signal(number)
    return pid
