"""The consumer group beyond one member's own part: the assignment, members that differ, members that died."""

import asyncio
import socket
import time
from collections.abc import Iterable, Mapping
from importlib.metadata import version

import structlog
from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.errors import KafkaError, UnknownMemberIdError, for_code
from aiokafka.protocol.group import LeaveGroupRequest

from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.transport.failover_client import FailoverAdmin
from penstock.worker.kafka.fetching.common_heartbeats import until_apart

_EVICT_S = 5.0

log = structlog.get_logger("penstock.group")


def client_id(worker: int) -> str:
    """A member's client id. Kafka's member ids begin with it, and partitions are dealt in the order of member ids.

    Members with the same number on different machines come after one another, so each machine and each GPU gets its
    share. A member that is started again gets the partitions that it had.
    """
    return f"penstock-worker-{worker:03}-{socket.gethostname()}"


def assignor_for(revision: str) -> type[RoundRobinPartitionAssignor]:
    """Kafka's round robin, which deals each topic evenly, with a warning if the group's members are not alike.

    aiokafka's sticky assignor balances the sum of partitions only: a member may get all of the bulk topic and none of
    the online topic. As every rebalance of aiokafka revokes everything, there is little to gain by it.
    """
    runs = f"penstock {version('penstock')}, model revision {revision[:16]}"

    class Assignor(RoundRobinPartitionAssignor):  # type: ignore[misc]  # aiokafka has no type information
        @classmethod
        def metadata(cls, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
            return ConsumerProtocolMemberMetadata(cls.version, list(topics), runs.encode())

        @classmethod
        def assign(
            cls, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]
        ) -> dict[str, ConsumerProtocolMemberAssignment]:
            """Runs in one member of the group, its leader."""
            alike: dict[str, list[str]] = {}
            for member, metadata in members.items():
                alike.setdefault((metadata.user_data or b"").decode(errors="replace") or "unknown", []).append(member)
            if len(alike) > 1:
                log.warning("members_differ", members={what: sorted(names) for what, names in alike.items()})
            assigned: dict[str, ConsumerProtocolMemberAssignment] = super().assign(cluster, members)
            return assigned

    return Assignor


async def evict(cluster: KafkaCluster, group_id: str, member_id: str) -> None:
    """Tell the group that a member has died. Otherwise all others wait for it, for up to 10 s, before they go on."""
    admin = FailoverAdmin(**cluster.arguments)
    try:
        async with asyncio.timeout(_EVICT_S):
            await admin.start()
            coordinator = await admin.find_coordinator(group_id)
            await asyncio.sleep(until_apart(time.time()))  # all that stay hear of it together
            # aiokafka's admin client has no public method for this request.
            left = await admin._send_request_to_node(coordinator, LeaveGroupRequest(group_id, member_id))
        if left.error_code:
            raise for_code(left.error_code)
    except UnknownMemberIdError:
        pass  # it had left before it ended
    except (KafkaError, OSError) as error:  # OSError includes time-outs
        log.warning("member_not_evicted", member=member_id, error=repr(error))
    else:
        log.info("member_evicted", member=member_id)
    finally:
        await admin.close()
