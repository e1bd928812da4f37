"""aiokafka's consumer with the options of a worker."""

from dataclasses import dataclass

from penstock.producer.aiokafka_internals.assignor import assignor_for
from penstock.producer.aiokafka_internals.group_consumer import GroupConsumer, Jumped
from penstock.producer.aiokafka_internals.heartbeats import EVERY_S
from penstock.producer.aiokafka_internals.topic_ids import TopicIds
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.transport.connection import BACKOFF_MS, METADATA_MAX_AGE_MS
from penstock.worker.kafka.fetching.group import client_id

_PARTITION_FETCH_BYTES = 256 * 1024  # a larger record still comes, alone
_FETCH_BYTES = 4 * 1024 * 1024  # online partitions come first, so bulk takes the room that they leave


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A worker as a member of its group."""

    group_id: str
    worker: int  # the member's number on its machine
    revision: str  # of the model; members of one group should have the same
    fetch_max_wait_ms: int
    drain_s: float  # time that the records of revoked partitions have


def make_member(cluster: KafkaCluster, member: GroupMember, topic_ids: TopicIds, jumped: Jumped) -> GroupConsumer:
    """A consumer that joins the group when it is started and subscribed."""
    return GroupConsumer(
        topic_ids,
        jumped,
        **cluster.arguments,
        group_id=member.group_id,
        client_id=client_id(member.worker),
        partition_assignment_strategy=(assignor_for(member.revision),),
        heartbeat_interval_ms=int(1000 * EVERY_S / 2),  # the least pause; `CommonHeartbeats` waits for the rest
        enable_auto_commit=False,
        fetch_max_wait_ms=member.fetch_max_wait_ms,
        auto_offset_reset="earliest",
        isolation_level="read_committed",  # a record of an aborted transaction was never there
        # A rebalance waits for the drain. A member that takes longer loses its partitions, not its answers.
        rebalance_timeout_ms=int((member.drain_s + 10) * 1000),
        max_partition_fetch_bytes=_PARTITION_FETCH_BYTES,
        fetch_max_bytes=_FETCH_BYTES,
        retry_backoff_ms=BACKOFF_MS,
        metadata_max_age_ms=METADATA_MAX_AGE_MS,
    )
