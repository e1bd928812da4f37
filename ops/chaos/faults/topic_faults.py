"""Faults of topics and of the group: privileges, partitions, strangers and copies."""

import asyncio
import contextlib
import itertools
import random
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]  # without saying so

from penstock.ops.bench.load.records import read_topics
from penstock.ops.chaos.faults.access import Privilege, allow, has, revoke
from penstock.ops.chaos.faults.scene import Effect, NotInjectedError, Scene, comes_true
from penstock.ops.chaos.load.calls import REPLIES
from penstock.ops.chaos.load.raw_load import RAW_REPLIES
from penstock.producer.wire.topics import dead_letter_topic

COPIED = "chaos-copy"  # header of replies that a fault has written again
_STORM_JOINS, _NUM_COPIES = 4, 200
_STRANGER = {"enable.auto.commit": False, "log_level": 0}
_JOIN_S, _ANSWER_S = 30.0, 30.0
_RESTORE_S = 180.0  # a privilege is granted again, though brokers may be away
_SEEN_S = 30.0  # a change of a topic or of the group has come to be known
_COPY_S = 20.0
_LOOK_S = 0.2


async def rebalance_storm(scene: Scene, rng: random.Random) -> Effect:
    """A stranger joins the group, takes partitions, answers nothing and leaves, several times."""
    (group,) = [name for kind, _, name in scene.privileges if kind == "GROUP"]
    before, num_taken = scene.num_assignments(), list[int]()
    for _ in range(_STORM_JOINS):
        stay_s = rng.uniform(0.2, 1.5)
        taken = await asyncio.to_thread(_join, scene.cluster.bootstrap_servers, group, _topics(scene), stay_s)
        num_taken += [taken] if taken else []
    if not await comes_true(lambda: scene.num_assignments() > before, _SEEN_S, look_s=0.5):
        raise NotInjectedError(f"The group did not rebalance after {len(num_taken)} strangers.")
    rebalances = scene.num_assignments() - before
    return {"strangers": len(num_taken), "partitions_taken": sum(num_taken), "assignments_of_members": rebalances}


def _join(servers: str, group: str, topics: list[str], stay_s: float) -> int:
    """Be a member of the group for a while; returns the number of partitions that it had. Blocks."""
    stranger = Consumer(
        {"bootstrap.servers": servers, "group.id": group, "partition.assignment.strategy": "roundrobin", **_STRANGER}
    )
    try:
        stranger.subscribe(topics)
        until = time.monotonic() + _JOIN_S
        while not (taken := len(stranger.assignment())) and time.monotonic() < until:
            stranger.poll(_LOOK_S)
        time.sleep(stay_s)
        return taken
    finally:
        stranger.close()


async def partitions_added(scene: Scene, rng: random.Random) -> Effect:
    """A request topic gets one more partition."""
    topic = rng.choice(_topics(scene))
    admin = AdminClient({"bootstrap.servers": scene.cluster.bootstrap_servers, "log_level": 0})

    def num_partitions() -> int:
        return len(admin.list_topics(topic, timeout=_ANSWER_S).topics[topic].partitions)

    before = await asyncio.to_thread(num_partitions)
    (created,) = admin.create_partitions([NewPartitions(topic, before + 1)]).values()
    await asyncio.to_thread(created.result, _ANSWER_S)
    if not await _becomes_true(lambda: num_partitions() > before):
        raise NotInjectedError(f"{topic} still has {before} partitions.")
    return {"topic": topic, "partitions": before + 1}


async def access_revoked(scene: Scene, rng: random.Random) -> Effect:
    """The worker may not use its group, read a topic, or write its dead letters."""
    letters = dead_letter_topic("")
    choices = [
        (kind, operation, name)
        for kind, operation, name in scene.privileges
        if operation == "READ" or (operation == "WRITE" and name.endswith(letters))
    ]
    return await _without(scene, rng.choice(choices))


async def replies_refused(scene: Scene, rng: random.Random) -> Effect:
    """The worker may not write the plain producers' reply topic: dead letters stand for the replies."""
    return await _without(scene, ("TOPIC", "WRITE", RAW_REPLIES))


async def replies_copied(scene: Scene, rng: random.Random) -> Effect:
    """The latest replies come again, in another order."""
    return await asyncio.to_thread(_copy_latest, scene.cluster.bootstrap_servers, rng)


def _copy_latest(servers: str, rng: random.Random) -> Effect:
    until = time.monotonic() + _COPY_S  # a topic that is written to all the time has no end that a reader reaches
    with contextlib.closing(read_topics(servers, [REPLIES])) as replies:
        latest = list(deque(itertools.takewhile(lambda _: time.monotonic() < until, replies), _NUM_COPIES))
    if not latest:
        raise NotInjectedError("There was no reply to copy.")
    rng.shuffle(latest)
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "log_level": 0})
    for one in latest:
        headers: Any = [*one.headers, (COPIED, b"1")]  # bytes, as its type does not expect
        producer.produce(REPLIES, one.value, one.key, one.partition, headers=headers)
    if num_left := producer.flush(_COPY_S):
        raise NotInjectedError(f"{num_left} copies were not acknowledged.")
    return {"copies": len(latest)}


async def _without(scene: Scene, privilege: Privilege) -> Effect:
    """Take a privilege away, and grant it again in any case. Brokers may be away meanwhile by another fault."""
    servers, began = scene.cluster.bootstrap_servers, time.monotonic()
    try:
        await _persist(lambda: revoke(servers, privilege))
        if not await _becomes_true(lambda: not has(servers, privilege)):
            raise NotInjectedError(f"The worker still has {' '.join(privilege)}.")
        revoked = time.monotonic()
        await asyncio.sleep(scene.outage_s / 2)
    finally:
        await _persist(lambda: allow(servers, [privilege]))
    if not await _becomes_true(lambda: has(servers, privilege)):
        raise RuntimeError(f"{' '.join(privilege)} could not be granted again.")  # the rest of the run is void
    times = {"took_s": round(revoked - began, 1), "missing_s": round(time.monotonic() - revoked, 1)}
    return {"privilege": " ".join(privilege), **times}


def _topics(scene: Scene) -> list[str]:
    """Those of requests."""
    return [name for kind, operation, name in scene.privileges if (kind, operation) == ("TOPIC", "READ")]


async def _becomes_true(is_known: Callable[[], bool]) -> bool:
    """Whether brokers come to know of a change. Some may be away."""
    until = time.monotonic() + _SEEN_S
    while time.monotonic() < until:
        with contextlib.suppress(KafkaException, TimeoutError):
            if await asyncio.to_thread(is_known):
                return True
        await asyncio.sleep(_LOOK_S)
    return False


async def _persist(change: Callable[[], None]) -> None:
    until = time.monotonic() + _RESTORE_S
    while True:
        try:
            return await asyncio.to_thread(change)
        except (KafkaException, TimeoutError):
            if time.monotonic() > until:
                raise
