"""The consumer group beyond one member's own part: names of members, and members that died."""

import asyncio
import socket
import time

import structlog
from aiokafka.errors import KafkaError, UnknownMemberIdError

from penstock.producer.aiokafka_internals.admin import FailoverAdmin
from penstock.producer.aiokafka_internals.heartbeats import until_apart
from penstock.producer.transport.cluster import KafkaCluster

_EVICT_S = 5.0

log = structlog.get_logger("penstock.group")


def client_id(worker: int) -> str:
    """A member's client id. Kafka's member ids begin with it, and partitions are dealt in the order of member ids.

    Members with the same number on different machines come after one another, so each machine and each GPU gets its
    share. A member that is started again gets the partitions that it had.
    """
    return f"penstock-worker-{worker:03}-{socket.gethostname()}"


async def evict(cluster: KafkaCluster, group_id: str, member_id: str) -> None:
    """Tell the group that a member has died. Otherwise all others wait for it, for up to 10 s, before they go on."""
    admin = FailoverAdmin(**cluster.arguments)
    try:
        async with asyncio.timeout(_EVICT_S):
            await admin.start()
            coordinator = await admin.find_coordinator(group_id)
            await asyncio.sleep(until_apart(time.time()))  # all that stay hear of it together
            await admin.leave_group(coordinator, group_id, member_id)
    except UnknownMemberIdError:
        pass  # it had left before it ended
    except (KafkaError, OSError) as error:  # OSError includes time-outs
        log.warning("member_not_evicted", member=member_id, error=repr(error))
    else:
        log.info("member_evicted", member=member_id)
    finally:
        await admin.close()
