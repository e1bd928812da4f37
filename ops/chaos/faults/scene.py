"""The scene of faults: brokers, the worker and its processes; and the error of a fault that did nothing."""

import asyncio
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.ops.chaos.faults.access import Privilege
from penstock.ops.chaos.fleet.worker_command import WorkerCommand
from penstock.ops.kafka import BrokerCluster, RegistryServer

Effect = Mapping[str, Any]  # of a fault as it was seen, for the report

CACHE = "cache.sqlite"  # the file of the response cache, in the control folder
STOPPED, ENDED = "T", "ended"  # states of processes; others are letters too, as Linux has them
_GONE = frozenset("ZX")
_REQUEST = struct.pack(">ihhihi", 14, 3, 1, 1, -1, 0)  # metadata of no topics, version 1


class NotInjectedError(RuntimeError):
    """The fault did not happen. The report lists it among those that were not injected."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Brokers, the worker, and how long faults last.

    A fault is a coroutine function of a scene and a random generator. It injects and undoes one fault, and returns its
    effect. It raises NotInjectedError, OSError, sqlite3.Error or an error of Kafka if the fault did not happen.
    """

    cluster: BrokerCluster
    worker: WorkerCommand
    folder: Path  # the members' control folder, with the cache
    privileges: Sequence[Privilege]  # of the worker
    outage_s: float  # how long one broker or one member is away; what costs less lasts for half of it
    leaderless_s: float  # how long two of three brokers are away
    num_acknowledged: Callable[[], int]  # records of the load that brokers have acknowledged so far
    registry: RegistryServer | None = None  # of schemas, where the worker has routes

    def num_assignments(self) -> int:
        """How often members of the worker were assigned partitions so far."""
        return self.worker.num_events("partitions_assigned")


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
