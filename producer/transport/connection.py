"""Connecting to Kafka, watching a connection, and creating topics; shared by clients and workers."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import structlog
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import NewTopic
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    KafkaConnectionError,
    KafkaError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    for_code,
)

from penstock.producer.aiokafka_internals.admin import FailoverAdmin
from penstock.producer.transport.cluster import KafkaCluster, KafkaRefused

BACKOFF_MS = 200  # between retries against a broker that is down
METADATA_MAX_AGE_MS = 30_000
_CREATED = (0, TopicAlreadyExistsError.errno)  # created, or created concurrently
_MOST_REPLICAS = 3  # aiokafka cannot ask for the broker's default
_FIRST_RETRY_S, _LAST_RETRY_S = 0.5, 5.0
_CREATION_PAUSES_S = (0.5, 1.0, 2.0)
_NO_PRODUCER = "Kafka denies an idempotent producer. Its user needs the ACL WRITE on a topic."
_WATCH_EVERY_S, _ANSWER_S = 3.0, 5.0
_STOP_S = 1.0  # of a client that is not connected

log = structlog.get_logger("penstock.kafka")


class _Connectable(Protocol):
    async def start(self) -> Any: ...
    async def stop(self) -> Any: ...


C = TypeVar("C", bound=_Connectable)


async def connect(cluster: KafkaCluster, make: Callable[[], C]) -> C:
    """Start a producer or consumer made by `make`; retries, with a log line, while no broker answers.

    Raises KafkaUnreachable after the cluster's `connect_timeout_s`, and KafkaRefused for credentials, a certificate or
    a missing ACL, which a retry does not mend.
    """
    async with cluster.patience():
        return await _connect(cluster, make)


async def _connect(cluster: KafkaCluster, make: Callable[[], C]) -> C:
    retry_s = _FIRST_RETRY_S
    while True:
        client = make()
        try:
            await client.start()
        except KafkaError as error:
            await disconnect(client, _STOP_S)
            if isinstance(error, ClusterAuthorizationFailedError):
                raise KafkaRefused(_NO_PRODUCER) from error
            if not isinstance(error, KafkaConnectionError) and not error.retriable:
                raise
            refusal = await cluster.refusal()
            if refusal is not None:
                raise refusal from error
            log.warning("kafka_unreachable", error=str(error), retry_s=retry_s)
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _LAST_RETRY_S)
        except BaseException:
            await disconnect(client, _STOP_S)
            raise
        else:
            return client


async def disconnect(client: _Connectable, timeout_s: float) -> None:
    """Stop a client within a time limit. Without a broker, aiokafka's stop may hang or raise CancelledError."""
    stopping = asyncio.create_task(client.stop())
    await asyncio.wait((stopping,), timeout=timeout_s)
    if not stopping.done():
        stopping.cancel()
    elif stopping.cancelled() or stopping.exception() is not None:
        log.warning("stopped_uncleanly", client=type(client).__name__)


async def watch(consumer: AIOKafkaConsumer) -> None:
    """Log when the broker is lost and when it is back, until cancelled; aiokafka itself logs neither."""
    is_lost = False
    while True:
        await asyncio.sleep(_WATCH_EVERY_S)
        # The ends of a topic that is denied are asked for until the time-out, without an answer.
        sources = [one for one in consumer.assignment() if consumer.partitions_for_topic(one.topic)][:1]
        try:
            async with asyncio.timeout(_ANSWER_S):
                await consumer.end_offsets(sources)
        except TopicAuthorizationFailedError:
            pass  # a broker that is there has answered; whether others are is not known
        except (KafkaError, OSError) as error:  # OSError includes time-outs
            if not is_lost:
                log.warning("kafka_unreachable", error=str(error) or f"no answer in {_ANSWER_S:g} s")
            is_lost = True
        else:
            if is_lost and sources:
                log.info("kafka_back")
                is_lost = False


async def topic_config(cluster: KafkaCluster, topic: str, name: str) -> str:
    """The value of one property of a topic. Called after a connection was made, and waits for a broker.

    Raises KafkaRefused for a permission that is missing.
    """
    while True:
        admin = FailoverAdmin(**cluster.arguments)
        try:
            await admin.start()
            return await admin.topic_config(topic, name)
        except TopicAuthorizationFailedError as error:
            raise KafkaRefused(
                f"Kafka denies {topic} to this user. It needs the ACL DESCRIBE_CONFIGS on it."
            ) from error
        except (KafkaError, OSError) as error:
            log.warning("kafka_unreachable", error=repr(error), retry_s=_LAST_RETRY_S)
            await asyncio.sleep(_LAST_RETRY_S)
        finally:
            await admin.close()


async def ensure_topics(
    cluster: KafkaCluster, topics: Sequence[str], num_partitions: int, config: Mapping[str, str] | None = None
) -> None:
    """Create missing topics, with up to three replicas and these properties. Called after a connection was made.

    What passes, such as a cluster that elects its controller, is tried again for some seconds. A refusal (no
    permission, or a mock broker without the request) is logged and not raised. The topic may be created on first use;
    otherwise the first send or poll fails.
    """
    created = list[str]()
    for pause_s in (*_CREATION_PAUSES_S, None):
        try:
            missing, refused = await _create_missing(cluster, topics, num_partitions, config or {})
        except (KafkaError, OSError, ValueError, AttributeError) as error:
            # OSError includes time-outs. aiokafka raises AttributeError for a cluster without controller, as a mock is.
            passes, reason = isinstance(error, OSError) or getattr(error, "retriable", False), repr(error)
        else:
            passes, reason = any(for_code(code).retriable for code in refused.values()), ""
            created += [topic for topic in missing if topic not in refused]
        if pause_s is None or not passes:
            break
        await asyncio.sleep(pause_s)
    if reason:
        log.info("topics_not_created", topics=[topic for topic in topics if topic not in created], reason=reason)
    elif created or refused:
        log.info("topics_created", topics=created, refused=refused)


async def _create_missing(
    cluster: KafkaCluster, topics: Sequence[str], num_partitions: int, config: Mapping[str, str]
) -> tuple[list[str], dict[str, int]]:
    """Return the topics that were missing, and the code of each that was refused."""
    admin = FailoverAdmin(**cluster.arguments)
    try:
        await admin.start()
        existing = set(await admin.list_topics())
        missing = [topic for topic in topics if topic not in existing]
        if not missing:
            return [], {}
        replicas = min(_MOST_REPLICAS, len((await admin.describe_cluster())["brokers"]))
        made = [NewTopic(topic, num_partitions, replicas, topic_configs=dict(config)) for topic in missing]
        answer = await admin.create_topics(made)
        return missing, {topic: code for topic, code, *_ in answer.topic_errors if code not in _CREATED}
    finally:
        await admin.close()
