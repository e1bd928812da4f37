"""Several FastStream services of one group, of which one that is killed is started again."""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from penstock.ops.bench.common.processes import ProcessFailed

_GROUP = "plain"
_LOOK_EVERY_S = 0.5  # FastStream's own supervisor looks as often for workers that have ended
_JOIN_TIMEOUT_S, _STOP_TIMEOUT_S = 60.0, 30.0


class FaststreamMembers:
    """A context manager; the processes end with it."""

    def __init__(self, count: int, bootstrap_servers: str, ack_policy: str, log: Path) -> None:
        self._spec = json.dumps({"bootstrap_servers": bootstrap_servers, "ack_policy": ack_policy, "model": None})
        self._bootstrap_servers = bootstrap_servers
        self._count = count
        self._log = log
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._processes = [self._start() for _ in range(self._count)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def kill_one(self) -> float:
        """Kill the oldest member with SIGKILL when all are in the group, and start another as a supervisor would.

        Returns the Unix time of the kill.
        """
        self.wait_until_ready(_JOIN_TIMEOUT_S)
        process, at = self._processes.pop(0), time.time()
        process.kill()
        process.wait()
        time.sleep(_LOOK_EVERY_S)
        self._processes.append(self._start())
        return at

    def wait_until_ready(self, timeout_s: float) -> None:
        """Wait until all members are in the group. Raises ProcessFailed."""
        ends = time.monotonic() + timeout_s
        while asyncio.run(self._num_joined()) < self._count:
            if time.monotonic() > ends:
                raise ProcessFailed(f"The FastStream members had not joined after {timeout_s:.0f} s: {self._log}")
            time.sleep(_LOOK_EVERY_S)

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "penstock.ops.bench.delivery.faststream_member", self._spec]
        with self._log.open("ab") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    async def _num_joined(self) -> int:
        """Members of the group when all of them have their partitions."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap_servers)
        await admin.start()
        try:
            (answer,) = await admin.describe_consumer_groups([_GROUP])
        except KafkaError:  # the broker makes the topic of the groups' offsets when the first member comes
            return 0
        finally:
            await admin.close()
        _, _, state, _, _, members, *_ = answer.groups[0]
        return len(members) if state == "Stable" else 0
