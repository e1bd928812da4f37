"""How partitions are dealt: by aiokafka's own round robin, in the order of the members' client ids."""

from collections import Counter
from types import SimpleNamespace

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from aiokafka.errors import for_code
from structlog.testing import capture_logs

from penstock.producer.aiokafka_internals.assignor import assignor_for
from penstock.producer.settings import KafkaSettings
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.wire.topics import NUM_PARTITIONS
from penstock.worker.kafka.fetching import group
from penstock.worker.kafka.fetching.group import client_id, evict
from penstock.worker.supervision.placement import Gpu, Machine, place

TOPICS = ("requests", "requests.bulk")
CLUSTER = SimpleNamespace(partitions_for_topic=lambda topic: set(range(NUM_PARTITIONS)))

Owned = dict[int, dict[str, list[int]]]  # worker -> topic -> partitions


def deal(workers: list[int], seed: int = 0) -> Owned:
    """The assignment of a group of these workers; Kafka adds random letters to their client ids."""
    assignor = assignor_for("1234")
    ids = {f"{client_id(worker)}-{hash((seed, worker)) & 0xFFFF:04x}": worker for worker in workers}
    members = {member: assignor.metadata(TOPICS) for member in ids}
    return {ids[member]: dict(found.assignment) for member, found in assignor.assign(CLUSTER, members).items()}


@pytest.mark.parametrize("num_members", [1, 2, 3, 5, 7, 12, 16, 24, 59, 60])
def test_each_member_gets_an_equal_share_of_each_topic(num_members: int) -> None:
    owned = deal(list(range(num_members)))
    for topic in TOPICS:
        shares = [len(partitions.get(topic, [])) for partitions in owned.values()]
        assert sum(shares) == NUM_PARTITIONS
        assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize("num_gpus", [2, 4, 5, 8])
def test_each_gpu_gets_an_equal_share_of_each_topic(num_gpus: int) -> None:
    machine = Machine(tuple(range(16 * num_gpus)), tuple(Gpu(f"GPU-{n}", "H200", None) for n in range(num_gpus)))
    gpus = {placement.worker: placement.gpu for placement in place(machine, range(num_gpus), None)}
    owned = deal(list(gpus))
    for topic in TOPICS:
        shares = Counter(dict.fromkeys(gpus.values(), 0))
        for worker, partitions in owned.items():
            shares[gpus[worker]] += len(partitions.get(topic, []))
        assert max(shares.values()) - min(shares.values()) <= 1


def test_a_member_that_is_started_again_gets_the_partitions_that_it_had() -> None:
    assert deal([0, 1, 2, 3, 4], seed=1) == deal([0, 1, 2, 3, 4], seed=2)


@pytest.mark.parametrize("user_data", [b"", None])
def test_members_that_run_something_else_are_named(user_data: bytes | None) -> None:
    assignor = assignor_for("1234")
    members = {
        "penstock-worker-000-a-1": assignor.metadata(TOPICS),
        "penstock-worker-001-a-2": assignor_for("5678").metadata(TOPICS),
        "another-client": ConsumerProtocolMemberMetadata(0, list(TOPICS), user_data),
    }
    with capture_logs() as events:
        assigned = assignor.assign(CLUSTER, members)
    assert len(assigned) == 3
    (event,) = events
    assert event["event"] == "members_differ"
    assert sorted(event["members"].values()) == [["another-client"], [*members][:1], [*members][1:2]]
    with capture_logs() as events:
        assignor.assign(CLUSTER, {name: assignor.metadata(TOPICS) for name in members})
    assert events == []


class Admin:
    """A cluster that answers a departure with an error code."""

    def __init__(self, code: int) -> None:
        self._code = code

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def find_coordinator(self, group_id: str) -> int:
        return 1

    async def leave_group(self, coordinator: int, group_id: str, member_id: str) -> None:
        if self._code:
            raise for_code(self._code)


@pytest.mark.parametrize(
    ("code", "logged"), [(0, ["member_evicted"]), (16, ["member_not_evicted"]), (25, [])], ids=["ok", "refused", "gone"]
)
async def test_a_departure_that_kafka_refuses_is_no_eviction(
    monkeypatch: pytest.MonkeyPatch, code: int, logged: list[str]
) -> None:
    monkeypatch.setattr(group, "FailoverAdmin", lambda **_: Admin(code))
    with capture_logs() as events:
        await evict(KafkaCluster.of(KafkaSettings.model_validate({"bootstrap_servers": "127.0.0.1:1"})), "g", "m")
    assert [event["event"] for event in events] == logged
