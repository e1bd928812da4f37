"""Faults of brokers. At most one of them at a time: a node's methods are not safe for concurrent calls."""

import asyncio
import random

from penstock.ops.kafka import BrokerCluster


class BrokerFaults:
    """Each method injects and undoes one fault."""

    def __init__(self, cluster: BrokerCluster, outage_s: float, leaderless_s: float) -> None:
        """`outage_s`: how long one broker is away. `leaderless_s`: how long two of three are."""
        self._cluster = cluster
        self._outage_s = outage_s
        self._leaderless_s = leaderless_s

    async def broker_killed(self, rng: random.Random) -> None:
        """A crash: SIGKILL, and a start after half of an outage."""
        node = rng.choice(self._cluster.nodes)
        await asyncio.to_thread(node.kill)
        await asyncio.sleep(self._outage_s / 2)
        await asyncio.to_thread(node.start)

    async def broker_restarted(self, rng: random.Random) -> None:
        """A clean stop and start, as of an upgrade."""
        node = rng.choice(self._cluster.nodes)
        await asyncio.to_thread(node.stop)
        await asyncio.to_thread(node.start)

    async def broker_suspended(self, rng: random.Random) -> None:
        """SIGSTOP: its connections stay open and answer nothing."""
        node = rng.choice(self._cluster.nodes)
        node.suspend()
        try:
            await asyncio.sleep(self._outage_s)
        finally:
            node.resume()

    async def no_leader(self, rng: random.Random) -> None:
        """Two of three brokers away: some partitions have no leader, the others too few replicas to take a record."""
        away = rng.sample(self._cluster.nodes, 2)
        for node in away:
            await asyncio.to_thread(node.kill)
        await asyncio.sleep(self._leaderless_s)
        await asyncio.to_thread(self._cluster.start)
