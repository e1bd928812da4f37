"""The manual's page about PostgreSQL and pgvector has what the loop runs."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from penstock.ops.loop.loop_settings import ROUTE, sink_config, source_config

PAGE = (Path(__file__).parents[2] / "ops" / "docs" / "pgvector.md").read_text(encoding="utf-8")
_PORT = 5432


def test_the_connectors_are_configured_as_the_page_says() -> None:
    blocks: list[Mapping[str, str]] = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]
    assert blocks == [source_config(_PORT), sink_config(_PORT)]


def test_the_route_is_asked_as_the_page_says() -> None:
    (command,) = re.findall(r"```\n(penstock worker .*?)```", PAGE, re.DOTALL)
    assert dict(re.findall(r"--([\w-]+) (\S+)", command)).items() >= ROUTE.items()
