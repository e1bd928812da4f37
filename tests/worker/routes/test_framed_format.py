"""The schemas of an input topic when a worker starts. The registry is kept in memory."""

import json
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema

from penstock.producer.errors import InvalidRequest, WrongArgument
from penstock.producer.wire.messages import NO_OPTIONS
from penstock.worker.routes.formats import format_of
from penstock.worker.routes.record_format import RecordFormat
from penstock.worker.routes.settings import RouteSettings

FIRST, SECOND = b"\0\0\0\0\1\x02a", b"\0\0\0\0\2\x02a"  # framed by the ids of the two versions


class Registry:
    """Two versions of the input's schema, and what was registered for the output, in its order."""

    def __init__(self, refused: int | None = None) -> None:
        self.registered: list[str] = []
        self._refused = refused

    async def versions(self, subject: str) -> Any:
        assert subject == "in-value"
        return [(1, order("First")), (2, order("Second"))]

    async def latest(self, subject: str) -> Any:
        assert subject == "out-value"

    async def schema(self, schema_id: int) -> Any:
        assert schema_id == 1  # the other is known
        return order("First")

    async def referenced(self, schema: Any) -> list[tuple[str, str]]:
        return []

    async def register(self, subject: str, schema: Any) -> int:
        name = json.loads(schema.schema_str)["name"]
        if self._refused is not None and name == ("First", "Second")[self._refused - 1]:
            raise WrongArgument("not compatible")
        self.registered.append(name)
        return 10 + len(self.registered)


def order(name: str) -> Schema:
    return Schema(json.dumps({"type": "record", "name": name, "fields": [{"name": "text", "type": "string"}]}), "AVRO")


def unchecked(registry: Any) -> RecordFormat:
    given: Any = {"text": "text", "record_format": "avro"}
    settings = RouteSettings(input_topic="in", output_topic="out", **given)
    return format_of(settings, "embed", NO_OPTIONS, registry, None, is_chunked=False)


async def checked(registry: Any) -> RecordFormat:
    made = unchecked(registry)
    await made.check()
    return made


async def test_versions_are_registered_in_their_order_as_compatibility_needs() -> None:
    registry = Registry()
    made = await checked(registry)
    assert registry.registered == ["First", "Second"]
    assert [made.read(value) for value in (FIRST, SECOND)] == [{"text": "a"}] * 2
    assert [made.write(value, None)[:5] for value in (FIRST, SECOND)] == [b"\0\0\0\0\x0b", b"\0\0\0\0\x0c"]


async def test_an_earlier_version_that_is_refused_has_dead_letters_and_the_start_goes_on() -> None:
    made = await checked(Registry(refused=1))
    await made.prepare([FIRST])
    with pytest.raises(InvalidRequest, match=r"The schema 1 of in-value .* not compatible"):
        made.read(FIRST)
    assert made.read(SECOND) == {"text": "a"}


async def test_the_latest_version_that_is_refused_ends_the_start() -> None:
    with pytest.raises(WrongArgument, match=r"The schema 2 of in-value .* not compatible"):
        await checked(Registry(refused=2))


async def test_the_first_record_after_a_start_without_the_registry_has_all_versions_registered() -> None:
    registry = Registry()
    made = unchecked(registry)
    await made.prepare([SECOND])
    assert registry.registered == ["First", "Second"]
    assert made.read(FIRST) == made.read(SECOND) == {"text": "a"}


async def test_the_latest_version_that_is_refused_ends_a_worker_that_started_without_the_registry() -> None:
    with pytest.raises(WrongArgument, match=r"The schema 2 of in-value .* not compatible"):
        await unchecked(Registry(refused=2)).prepare([FIRST])
