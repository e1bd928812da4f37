"""The records that the door of routes lets in."""

from dataclasses import replace
from typing import Any

import pytest

from penstock.engine.types import ModelInfo
from penstock.producer.errors import WrongArgument
from penstock.producer.prompts import Prompts
from penstock.worker.enrichment.router import Router
from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.reply_bounds import ReplyBounds
from penstock.worker.requests.validation import RequestValidator
from penstock.worker.routes.settings import RouteSettings
from tests.worker.conftest import FakeRecord


def router(info: ModelInfo, **given: Any) -> Router:
    """Of one route from `in`, whose results may have 1,024 bytes."""
    bounds = ReplyBounds(info, 1024)
    validator = RequestValidator(info, bounds, Prompts(), reply_topics=".*", slo_s=None, max_sequences=16)
    settings = RouteSettings(**{"input_topic": "in", "output_topic": "out", "text": "text", "task": "embed"} | given)
    return Router([settings], info, validator.checked)


@pytest.mark.parametrize("record_format", ["json", "text"])
def test_a_vector_that_is_too_large_as_json_is_refused_at_start(info: ModelInfo, record_format: str) -> None:
    given = {"record_format": record_format, "text": "text" if record_format == "json" else None}
    router(replace(info, dim=50), **given)
    with pytest.raises(WrongArgument, match="1,024 bytes"):  # 400 bytes as floats, 1,700 as JSON
        router(replace(info, dim=100), **given)


def test_what_grows_with_a_text_is_bounded_as_json_too(info: ModelInfo) -> None:
    record = PendingRecord(FakeRecord(b'{"text": "a b"}', topic="in"), ("in", 0), from_bulk_topic=False)
    [request], _, _ = router(info).validate([record], 0.0, 0.0)
    assert request.address.is_json
