"""Whether a process or a broker is as a fault meant it to be."""

import asyncio
import struct
import time
from collections.abc import Callable
from pathlib import Path

STOPPED, ENDED = "T", "ended"  # states of processes; others are letters too, as Linux has them
_GONE = frozenset("ZX")
_REQUEST = struct.pack(">ihhihi", 14, 3, 1, 1, -1, 0)  # metadata of no topics, version 1


def state(pid: int) -> str:
    """The state of a process."""
    try:
        found = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return ENDED
    return ENDED if found in _GONE else found


async def comes_true(is_so: Callable[[], bool], timeout_s: float, look_s: float = 0.05) -> bool:
    """Whether a condition holds within a time. It is asked every `look_s`."""
    until = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > until:
            return False
        await asyncio.sleep(look_s)
    return True


async def answers(address: str, timeout_s: float) -> bool:
    """Whether a broker answers a request within a time."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                writer.write(_REQUEST)
                return bool(await reader.read(1))
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
