"""aiokafka's round robin, with a warning if the group's members are not alike.

aiokafka (0.14) sends no data of its members, and its sticky assignor balances the sum of partitions only: a member may
get all of the bulk topic and none of the online topic. As every rebalance of aiokafka revokes everything, there is
little to gain by it. To go, it needs public types of what an assignor gets and returns.
"""

from collections.abc import Iterable, Mapping
from importlib.metadata import version

import structlog
from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

log = structlog.get_logger("penstock.group")


def assignor_for(revision: str) -> type[RoundRobinPartitionAssignor]:
    """Deals each topic evenly, in the order of member ids. `revision`: of the model that this member runs."""
    runs = f"penstock {version('penstock')}, model revision {revision}"

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
