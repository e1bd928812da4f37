"""The check of the broker and of the topics that a worker uses."""

import asyncio
from collections.abc import Mapping

from aiokafka.errors import KafkaConnectionError, KafkaError

from penstock.ops.cli.checks.probes import CheckSettings, Finding
from penstock.producer.aiokafka_internals.admin import FailoverAdmin
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.wire.topics import NUM_PARTITIONS, REPLY_TOPIC, bulk_topic, request_topic
from penstock.worker.command import placements_for
from penstock.worker.routes.settings import RouteSettings
from penstock.worker.supervision.machine import this_machine
from penstock.worker.supervision.placement import CannotPlace

_ANSWER_S = 5.0  # without --connect-timeout-s


async def probe_kafka(settings: CheckSettings) -> list[Finding]:
    """Check broker and topics with one metadata request, which creates no topic."""
    servers = settings.bootstrap_servers
    cluster = KafkaCluster.of(settings)
    answer_s = settings.connect_timeout_s or _ANSWER_S
    admin = FailoverAdmin(**cluster.arguments, request_timeout_ms=int(answer_s * 1000))
    try:
        async with asyncio.timeout(answer_s):
            await admin.start()
            topics = {topic["topic"]: len(topic["partitions"]) for topic in await admin.describe_topics()}
    except (KafkaConnectionError, TimeoutError):
        refusal = await cluster.refusal()
        if refusal is not None:
            return [Finding("Kafka", "problem", str(refusal)), _NO_TOPICS]
        return _no_kafka(f"{servers} does not answer within {answer_s:g} s")
    except (KafkaError, OSError, ValueError) as error:
        return _no_kafka(f"{servers} cannot be used: {error}")
    finally:
        await admin.close()
    findings = [Finding("Kafka", "OK", f"{servers} answers; {len(topics)} topics")]
    findings += [_route(route, topics) for route in settings.all_routes]
    if not settings.all_routes or settings.topic is not None:
        findings += [_request_topic(settings, topics), _reply_topic(topics)]
    return findings


_NO_TOPICS = Finding("Topics", "not checked", "They need Kafka.")


def _no_kafka(found: str) -> list[Finding]:
    remedy = "Set --bootstrap-servers (PENSTOCK_BOOTSTRAP_SERVERS) to your Kafka, or start one here: penstock broker"
    return [Finding("Kafka", "problem", found, remedy), _NO_TOPICS]


def _request_topic(settings: CheckSettings, topics: Mapping[str, int]) -> Finding:
    topic = _topic_name(settings)
    if topic is None:
        return Finding("Request topic", "not checked", "Its name depends on the model.", "Give --model or --topic.")
    try:
        num_members = len(placements_for(settings, this_machine()))
    except CannotPlace:  # `members` reports it
        num_members = 1
    enough = max(NUM_PARTITIONS, num_members)
    exists = topic in topics
    if exists:
        found = f"{topic}, {topics[topic]} partitions: at most that many members share it"
        alter = f"kafka-topics.sh --bootstrap-server {settings.bootstrap_servers} --alter --partitions {enough} --topic"
        remedy = f"{alter} {topic}, and the same for {bulk_topic(topic)}"
    else:
        found = f"{topic} does not exist yet; the first client or worker creates it"
        remedy = f"Give --partitions {enough}."
    if (topics[topic] if exists else settings.partitions) < num_members:
        few = "" if exists else f", a worker with {settings.partitions} partitions"
        return Finding("Request topic", "problem", f"{found}{few}, and {num_members} would run on this machine", remedy)
    return Finding("Request topic", "OK", found)


def _route(route: RouteSettings, topics: Mapping[str, int]) -> Finding:
    if route.input_topic not in topics:
        remedy = "Create it: a worker reads it, and does not make it."
        return Finding("Route", "problem", f"the input topic {route.input_topic} does not exist", remedy)
    found = f"{route.input_topic}, {topics[route.input_topic]} partitions: at most that many members share it"
    made = "" if route.output_topic in topics else ", which the worker creates"
    return Finding("Route", "OK", f"{found}; to {route.output_topic}{made}")


def _topic_name(settings: CheckSettings) -> str | None:
    if settings.topic is not None:
        return settings.topic
    if settings.served_name:
        return request_topic(settings.served_name)
    if settings.model is None:
        return None
    from penstock.engine.model.checkpoint import default_name

    return request_topic(default_name(settings.model))


def _reply_topic(topics: Mapping[str, int]) -> Finding:
    if REPLY_TOPIC not in topics:
        return Finding("Reply topic", "OK", f"{REPLY_TOPIC} does not exist yet; the first client creates it")
    return Finding("Reply topic", "OK", f"{REPLY_TOPIC}, {topics[REPLY_TOPIC]} partitions")
