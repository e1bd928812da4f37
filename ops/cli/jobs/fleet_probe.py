"""Whether a fleet serves a job's model. Without one, a job would wait until its rows expire."""

import asyncio
import contextlib
from typing import Any

from aiokafka.errors import KafkaError

from penstock.ops.cli.jobs.job_settings import FileJobSettings
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.transport.failover_client import FailoverAdmin
from penstock.producer.wire.topics import bulk_topic, request_topic

_ANSWER_S = 5.0
_REMEDY = "Start one (penstock worker --model …), or wait for it with --wait"


async def missing_fleet(settings: FileJobSettings) -> str:
    """Why no worker can answer: a sentence. Empty if one can, or Kafka does not tell.

    Creates no topic. A broker that does not answer is left to the client, which waits for it.
    """
    model = settings.served_name
    topic, group = bulk_topic(settings.topic or request_topic(model)), f"penstock.{model}"
    topics: list[str] = []
    groups: list[Any] = []
    admin = FailoverAdmin(**KafkaCluster.of(settings).arguments, request_timeout_ms=int(_ANSWER_S * 1000))
    try:
        async with asyncio.timeout(_ANSWER_S):
            await admin.start()
            topics = await admin.list_topics()
            if topic in topics:
                groups = [one for answer in await admin.describe_consumer_groups([group]) for one in answer.groups]
    except (
        KafkaError,
        OSError,
        ValueError,
        AttributeError,
    ):  # OSError includes time-outs. The last: a mock broker
        return ""
    finally:
        with contextlib.suppress(KafkaError, OSError):
            await admin.close()
    if topic not in topics:
        return f"No worker has served {model!r} at {settings.bootstrap_servers}: there is no topic {topic}. {_REMEDY}."
    if any(error or members for error, _, _, _, _, members, *_ in groups):
        return ""
    return f"No worker serves {model!r}: the group {group} has no member. {_REMEDY}, as for a group of another name."
