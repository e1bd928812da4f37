"""Faults of brokers and of the registry. At most one of them at a time: their methods are not for concurrent calls."""

import asyncio
import random
import time

from penstock.ops.chaos.faults.scene import ENDED, STOPPED, Effect, NotInjectedError, Scene, answers, comes_true, state
from penstock.ops.kafka.broker import KafkaBroker

_AWAY_S, _ANSWER_S = 5.0, 2.0  # a process has ended or stopped; a broker that runs answers


async def broker_killed(scene: Scene, rng: random.Random) -> Effect:
    """A crash: SIGKILL, and a start after half of an outage."""
    node = rng.choice(scene.cluster.nodes)
    began, pid = time.monotonic(), await _kill(node)
    await asyncio.sleep(scene.outage_s / 2)
    await asyncio.to_thread(node.start)
    return {"pid": pid, "dead": True, "away_s": round(time.monotonic() - began, 1)}


async def broker_restarted(scene: Scene, rng: random.Random) -> Effect:
    """A clean stop and start, as of an upgrade."""
    node = rng.choice(scene.cluster.nodes)
    began, pid = time.monotonic(), _pid(node)
    await asyncio.to_thread(node.stop)
    await asyncio.to_thread(node.start)
    return {"pid": pid, "replaced_by": _pid(node), "away_s": round(time.monotonic() - began, 1)}


async def broker_suspended(scene: Scene, rng: random.Random) -> Effect:
    """SIGSTOP: its connections stay open and answer nothing."""
    node = rng.choice(scene.cluster.nodes)
    pid, looks = _pid(node), 0
    node.suspend()
    began = time.monotonic()
    try:
        if not await comes_true(lambda: state(pid) == STOPPED, _AWAY_S):
            raise NotInjectedError(f"The broker's process is {state(pid)} and does not stop.")
        while not looks or time.monotonic() - began < scene.outage_s:
            if await answers(node.bootstrap_servers, min(_ANSWER_S, scene.outage_s)):
                raise NotInjectedError("The broker answers although it is suspended.")
            looks += 1
        is_stopped = state(pid) == STOPPED
    finally:
        node.resume()
    if not is_stopped:
        raise NotInjectedError("The broker was not suspended to the end.")
    return {"pid": pid, "unanswered_requests": looks, "silent_s": round(time.monotonic() - began, 1)}


async def no_leader(scene: Scene, rng: random.Random) -> Effect:
    """Two of three brokers away: some partitions have no leader, the others too few replicas to take a record."""
    away = rng.sample(scene.cluster.nodes, 2)
    pids = [await _kill(node) for node in away]
    await asyncio.sleep(scene.leaderless_s / 2)  # acknowledgements on their way, and a machine that stands still
    began, before = time.monotonic(), scene.num_acknowledged()
    await asyncio.sleep(scene.leaderless_s / 2)
    num_taken, silent_s = scene.num_acknowledged() - before, time.monotonic() - began
    await asyncio.to_thread(scene.cluster.start)
    if num_taken:
        raise NotInjectedError(f"Brokers took {num_taken} records.")
    return {"pids": pids, "dead": True, "acknowledged_records": num_taken, "silent_s": round(silent_s, 1)}


async def registry_restarted(scene: Scene, rng: random.Random) -> Effect:
    """A crash of the schema registry: SIGKILL, and a start after half of an outage."""
    if scene.registry is None:
        raise NotInjectedError("There is no registry.")
    began = time.monotonic()
    await asyncio.to_thread(scene.registry.kill)
    await asyncio.sleep(scene.outage_s / 2)
    await asyncio.to_thread(scene.registry.start)
    return {"away_s": round(time.monotonic() - began, 1)}


def _pid(node: KafkaBroker) -> int:
    if node.pid is None:
        raise NotInjectedError("The broker did not run.")
    return node.pid


async def _kill(node: KafkaBroker) -> int:
    """Returns the process that is dead now."""
    pid = _pid(node)
    await asyncio.to_thread(node.kill)
    if not await comes_true(lambda: state(pid) == ENDED, _AWAY_S):
        raise NotInjectedError(f"The broker's process is {state(pid)} and does not end.")
    return pid
