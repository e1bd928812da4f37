"""Whether a fleet serves a job's model. Without one, a job would wait until its rows expire."""

import asyncio
import contextlib
from typing import Any

from aiokafka.errors import GroupCoordinatorNotAvailableError, IncompatibleBrokerVersion, KafkaError, for_code

from penstock.ops.cli.jobs.job_settings import FileJobSettings
from penstock.producer.aiokafka_internals.admin import FailoverAdmin
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.wire.topics import bulk_topic, request_topic

_ANSWER_S = 5.0
_RETRY_S = 0.2
_REMEDY = "Start one (penstock worker --model …), or give --wait, also for a group of another name"


async def missing_fleet(settings: FileJobSettings) -> str:
    """Why no worker can answer: a sentence. Empty if one can, or Kafka does not tell.

    Creates no topic. A broker that does not answer is left to the client, which waits for it a while. One without an
    API for groups, as a mock is, tells by its topics.
    """
    model = settings.served_name
    topic, group = bulk_topic(settings.topic or request_topic(model)), f"penstock.{model}"
    answer_s = min(_ANSWER_S, settings.connect_timeout_s or _ANSWER_S)
    admin = FailoverAdmin(**KafkaCluster.of(settings).arguments, request_timeout_ms=int(answer_s * 1000))
    try:
        async with asyncio.timeout(answer_s):
            await admin.start()
            groups = await _described(admin, group)
            has_topic = topic in await admin.list_topics()
    except (KafkaError, OSError, ValueError, AttributeError):  # OSError includes time-outs
        return ""
    finally:
        with contextlib.suppress(KafkaError, OSError):
            await admin.close()
    if (groups is None and has_topic) or any(error or members for error, _, _, _, _, members, *_ in groups or ()):
        return ""
    fault = f"the group {group} has no member" if has_topic else f"there is no topic {topic}"
    return f"No worker serves {model!r} at {settings.bootstrap_servers}: {fault}. {_REMEDY}."


async def _described(admin: FailoverAdmin, group: str) -> list[Any] | None:
    """Ask the group's coordinator; None: the broker has no such API.

    A new cluster chooses a coordinator once it is asked for one, and that answers NOT_COORDINATOR until it has begun.
    """
    while True:
        try:
            groups = [one for answer in await admin.describe_consumer_groups([group]) for one in answer.groups]
            if not any(error and for_code(error).retriable for error, *_ in groups):
                return groups
        except IncompatibleBrokerVersion:
            return None
        except GroupCoordinatorNotAvailableError:
            pass
        await asyncio.sleep(_RETRY_S)
