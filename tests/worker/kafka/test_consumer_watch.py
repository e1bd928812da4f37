"""Events that aiokafka does not report: denied and unknown topics, and tasks that have ended. Fakes, no clock."""

from typing import Any

import pytest
from aiokafka.errors import KafkaError
from structlog.testing import capture_logs

from penstock.worker.kafka.fetching.consumer_watch import ConsumerFailed, ConsumerWatch

ONLINE, BULK = "penstock.requests.tiny", "penstock.requests.tiny.bulk"


class FakeClient:
    """aiokafka's client and its view of the cluster."""

    def __init__(self) -> None:
        self.cluster = self
        self.unauthorized_topics: set[str] = set()
        self.known = {ONLINE, BULK}
        self.num_updates = 0

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return {0} if topic in self.known else None

    def force_metadata_update(self) -> None:
        self.num_updates += 1


class FakeConsumer:
    """The consumer, of which the parts that are looked at are here."""

    def __init__(self) -> None:
        self.client = FakeClient()
        self.ended: dict[str, BaseException | None] = {}

    def ended_tasks(self) -> dict[str, BaseException | None]:
        return self.ended


@pytest.fixture
def kafka() -> Any:
    return FakeConsumer()


def deny(kafka: Any, *topics: str) -> None:
    """As the answer to a request for metadata after a privilege was revoked."""
    kafka.client.unauthorized_topics = set(topics)
    kafka.client.known = {ONLINE, BULK} - set(topics)


def test_a_denied_topic_is_named_once_and_asked_for_until_it_is_back(kafka: Any) -> None:
    watch = ConsumerWatch((ONLINE, BULK))
    with capture_logs() as logs:
        watch.look(kafka)
        assert (watch.denied, kafka.client.num_updates) == (frozenset(), 0)
        deny(kafka, ONLINE)
        for _ in range(3):
            watch.look(kafka)
        assert (watch.denied, kafka.client.num_updates) == ({ONLINE}, 3)
        deny(kafka)
        for _ in range(3):
            watch.look(kafka)
    assert (watch.denied, kafka.client.num_updates) == (frozenset(), 3)
    assert [(one["event"], one["topic"]) for one in logs] == [("topic_denied", ONLINE), ("topic_allowed", ONLINE)]


def test_a_topic_whose_fetch_is_refused_is_denied_though_it_may_be_described(kafka: Any) -> None:
    now = 100.0
    watch = ConsumerWatch((ONLINE, BULK), lambda: now)
    watch.refused(kafka, ("another",))
    assert watch.denied == frozenset()
    watch.refused(kafka, (BULK,))
    assert (watch.denied, kafka.client.num_updates) == ({BULK}, 1)
    now += 4.0
    watch.look(kafka)
    assert watch.denied == {BULK}
    now += 4.0  # no fetch has been refused meanwhile
    watch.look(kafka)
    assert watch.denied == frozenset()


def test_an_unknown_topic_is_asked_for_and_not_denied(kafka: Any) -> None:
    watch = ConsumerWatch((ONLINE, BULK))
    kafka.client.known = {ONLINE}
    watch.look(kafka)
    assert (watch.denied, kafka.client.num_updates) == (frozenset(), 1)


def test_a_task_of_aiokafka_that_has_ended_fails_the_watch(kafka: Any) -> None:
    watch = ConsumerWatch((ONLINE, BULK))
    kafka.ended = {"fetches": KafkaError("unexpected")}
    with pytest.raises(ConsumerFailed, match="fetches") as raised:
        watch.look(kafka)
    assert isinstance(raised.value.__cause__, KafkaError)
