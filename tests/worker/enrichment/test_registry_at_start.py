"""A schema registry that is away when a worker starts: routes without schemas begin, and the others' records wait."""

import asyncio
import json
from typing import Any

import pytest

from penstock.engine.types import ModelInfo
from penstock.producer.errors import WrongArgument
from penstock.worker.enrichment.router import Router
from penstock.worker.requests.record import PendingRecord
from penstock.worker.routes.settings import RouteSettings
from tests.worker.conftest import FakeRecord

RESULT = {"name": "result", "type": ["null", {"type": "array", "items": "float"}], "default": None}
SCHEMA = {"type": "record", "name": "Order", "fields": [{"name": "text", "type": "string"}, RESULT]}


class Registry:
    """It answers when it is back, with a schema of the output topic if it has one."""

    def __init__(self, schema: Any) -> None:
        self.is_back, self._schema = asyncio.Event(), schema

    async def latest(self, subject: str) -> Any:
        from confluent_kafka.schema_registry import Schema

        await self.is_back.wait()
        return None if self._schema is None else (7, Schema(json.dumps(self._schema), "AVRO"))

    async def referenced(self, schema: Any) -> list[tuple[str, str]]:
        return []


async def started(info: ModelInfo, registry: Any) -> Router:
    common = {"text": "text", "task": "embed"}
    routes = [
        RouteSettings.model_validate(
            {"input_topic": "framed", "output_topic": "out", "output_format": "avro", **common}
        ),
        RouteSettings.model_validate({"input_topic": "plain", "output_topic": "other", **common}),
    ]
    router = Router(routes, info, lambda message, is_json: message, registry)
    await router.check(timeout_s=0.01)
    return router


def record(topic: str) -> PendingRecord:
    return PendingRecord(FakeRecord(b'{"text": "a"}', topic=topic), (topic, 0), from_bulk_topic=False)


async def test_its_records_wait_until_it_is_back_and_others_do_not(info: ModelInfo) -> None:
    registry = Registry(SCHEMA)
    router = await started(info, registry)
    assert router.is_ready(record("plain"))
    assert not router.is_ready(record("framed"))
    preparing = asyncio.create_task(router.prepare([record("framed")]))
    await asyncio.sleep(0)
    assert not preparing.done()
    registry.is_back.set()
    await preparing
    assert router.is_ready(record("framed"))


async def test_what_a_start_would_have_refused_is_refused_later(info: ModelInfo) -> None:
    registry = Registry(None)
    router = await started(info, registry)
    registry.is_back.set()
    with pytest.raises(WrongArgument, match=r"The route from framed: .* no schema for out-value"):
        await router.prepare([record("framed")])
