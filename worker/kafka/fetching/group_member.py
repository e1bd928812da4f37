"""aiokafka's consumer with the options of a worker."""

from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor

from penstock.producer.transport.bounded_fetch import BoundedConsumer
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.transport.connection import BACKOFF_MS, METADATA_MAX_AGE_MS
from penstock.worker.kafka.fetching.common_heartbeats import EVERY_S

_PARTITION_FETCH_BYTES = 256 * 1024  # a larger record still comes, alone
_FETCH_BYTES = 4 * 1024 * 1024  # online partitions come first, so bulk takes the room that they leave


def make_member(
    cluster: KafkaCluster,
    group_id: str,
    *,
    client_id: str,
    assignor: type[AbstractPartitionAssignor],
    fetch_max_wait_ms: int,
    drain_s: float,
    isolation_level: str,
) -> AIOKafkaConsumer:
    """A consumer that joins the group when it is started and subscribed."""
    return BoundedConsumer(
        **cluster.arguments,
        group_id=group_id,
        client_id=client_id,
        partition_assignment_strategy=(assignor,),
        heartbeat_interval_ms=int(1000 * EVERY_S / 2),  # the least pause; `CommonHeartbeats` waits for the rest
        enable_auto_commit=False,
        fetch_max_wait_ms=fetch_max_wait_ms,
        auto_offset_reset="earliest",
        isolation_level=isolation_level,
        # A rebalance waits for the drain. A member that takes longer loses its partitions, not its answers.
        rebalance_timeout_ms=int((drain_s + 10) * 1000),
        max_partition_fetch_bytes=_PARTITION_FETCH_BYTES,
        fetch_max_bytes=_FETCH_BYTES,
        retry_backoff_ms=BACKOFF_MS,
        metadata_max_age_ms=METADATA_MAX_AGE_MS,
    )
