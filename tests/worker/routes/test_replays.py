"""Routes that accept replays: their topics, and what of a copy is its original's."""

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from penstock.worker.enrichment.replayed import source_of
from penstock.worker.routes.settings import RouteSettings
from penstock.worker.settings import WorkerSettings

ROUTE = {"input_topic": "orders", "output_topic": "enriched", "text": "text", "accept_replays": True}


def worker(*routes: dict[str, Any]) -> WorkerSettings:
    return WorkerSettings.model_validate({"model": "m", "group_id": "g", "routes": routes})


def test_a_route_has_a_part_for_its_replays_of_class_bulk_and_of_any_age() -> None:
    route = {**ROUTE, "max_age_ms": 5, "result_field": "vector"}
    own, replays = worker(route).route_parts
    assert (own.input_topic, own.route_class, own.max_age_ms) == ("orders", "online", 5)
    assert (replays.input_topic, replays.route_class, replays.max_age_ms) == ("orders.replay", "bulk", None)
    same = RouteSettings.model_fields.keys() - {"input_topic", "route_class", "max_age_ms", "accept_replays"}
    assert all(getattr(own, name) == getattr(replays, name) for name in same)
    assert [part.input_topic for part in worker({**ROUTE, "accept_replays": False}).route_parts] == ["orders"]


@pytest.mark.parametrize(
    "other",
    [
        {"input_topic": "orders.replay", "output_topic": "other"},
        {"input_topic": "other", "output_topic": "orders.replay"},
        {"input_topic": "other", "output_topic": "orders.replay.dead-letter"},
    ],
)
def test_a_topic_of_replays_is_of_no_other_route(other: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match=r"orders\.replay"):
        worker(ROUTE, {**other, "text": "text"})


def test_a_name_that_is_too_long_for_a_topic_of_replays_is_refused() -> None:
    longest = {**ROUTE, "input_topic": "o" * 230}
    assert RouteSettings.model_validate({**longest, "accept_replays": False})
    with pytest.raises(ValidationError, match="must be 1 to"):
        RouteSettings.model_validate(longest)


COPY = [("penstock-replay-source", b"orders-3-17"), ("penstock-replay-time-ms", b"1234")]


@pytest.mark.parametrize(
    ("topic", "headers", "expected"),
    [
        ("orders.replay", COPY, (b"orders-3-17", 1234, False)),
        ("orders", COPY, None),  # a header means nothing on another topic
        ("orders.replay", COPY[:1], None),
        ("orders.replay", [COPY[0], ("penstock-replay-time-ms", b"-1")], None),
        ("orders.replay", [], None),
    ],
)
def test_the_position_and_the_time_of_a_copy_are_those_of_its_original(
    topic: str, headers: list[tuple[str, bytes]], expected: tuple[bytes, int, bool] | None
) -> None:
    read: Any = SimpleNamespace(topic=topic, partition=0, offset=4, timestamp=99, headers=headers)
    own = (f"{topic}-{read.partition}-{read.offset}".encode(), read.timestamp, True)
    assert source_of(read) == (expected or own)
