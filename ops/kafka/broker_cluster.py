"""Several real brokers on this machine as one KRaft cluster, for tests of failures: each node can be killed alone."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

from penstock.ops.kafka.broker import ClusterNode, KafkaBroker, LocalBroker, new_cluster_id

# Three brokers share the machine with what they are tested with.
SMALL = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m")
_NUM_REPLICAS = 3
_REPLICATED = {
    "default.replication.factor": str(_NUM_REPLICAS),
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": str(_NUM_REPLICAS),
    "transaction.state.log.replication.factor": str(_NUM_REPLICAS),
    "transaction.state.log.min.isr": "2",
    # A node that hangs leaves the set of replicas in sync after this time, and writes wait for it until then.
    "replica.lag.time.max.ms": "6000",
}


class BrokerCluster(LocalBroker):
    """Three nodes, each broker and controller; three replicas of everything, of which two must have a record.

    One node may fail without effect. With two away, no record is accepted until one is back. As a context manager it
    starts all nodes; its methods block, as those of `KafkaBroker`, which do all else: `cluster.nodes[0].kill()`.
    """

    def __init__(
        self,
        *,
        temporary_in: Path | None = None,  # the parent of the nodes' folders; None: the system's temporary folder
        num_partitions: int = 1,  # of a topic that is created on first use
        config: Mapping[str, str] = MappingProxyType({}),
        listeners: Mapping[str, str] = MappingProxyType({}),
        jvm_flags: Sequence[str] = SMALL,
    ) -> None:
        cluster_id = new_cluster_id()
        self.nodes = [
            KafkaBroker(
                temporary_in=temporary_in,
                num_partitions=num_partitions,
                config=_REPLICATED | dict(config),
                listeners=listeners,
                jvm_flags=jvm_flags,
                node=ClusterNode(number + 1, cluster_id),
            )
            for number in range(_NUM_REPLICAS)
        ]
        voters = ",".join(node.voter for node in self.nodes)
        for node in self.nodes:
            node.configure({"controller.quorum.voters": voters})

    @property
    def bootstrap_servers(self) -> str:
        """All nodes, `127.0.0.1:port` each."""
        return ",".join(node.bootstrap_servers for node in self.nodes)

    def address(self, listener: str) -> str:
        """All nodes at a further listener."""
        return ",".join(node.address(listener) for node in self.nodes)

    def start(self) -> None:
        """Start the nodes that do not run, together: none is ready before a majority is."""
        with ThreadPoolExecutor(len(self.nodes)) as threads:
            list(threads.map(KafkaBroker.start, self.nodes))

    def close(self) -> None:
        """Stop all nodes for good and remove their data."""
        for node in self.nodes:
            node.close()
