"""Killing members whose event loop stands still."""

import asyncio
from collections.abc import Set

import structlog

from penstock.worker.control_socket import PING_EVERY_S
from penstock.worker.supervision.member_process import MemberProcess

log = structlog.get_logger("penstock.supervisor")


async def kill_silent(running: Set[MemberProcess], ping_s: float) -> None:
    """Kill members that have loaded and have not pinged for so long. Runs until it is cancelled.

    Silence counts in ticks of this loop, so that a suspended machine or supervisor accuses no member.
    """
    aborting: set[asyncio.Task[None]] = set()  # held, so that they are not collected
    while True:
        await asyncio.sleep(PING_EVERY_S)
        for member in [member for member in running if member.report.phase != "loading"]:
            silent_s = member.tick() * PING_EVERY_S
            if silent_s > ping_s and not member.is_silent:
                log.error("member_unresponsive", **member.names, silent_s=silent_s)
                abort = asyncio.create_task(member.abort())
                aborting.add(abort)
                abort.add_done_callback(aborting.discard)
