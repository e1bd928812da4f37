"""The log events that the manual lists, and a check that a test's code logs no other."""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

from structlog._base import BoundLoggerBase

from penstock.worker.resolved_settings import ResolvedSettings

PAGE = Path(__file__).parent.parent / "ops" / "docs" / "log-events.md"
ROOMS = ("producer", "worker", "engine", "scheduler", "cache")  # that a worker or a client runs
SETTINGS = frozenset(ResolvedSettings.model_fields)
_ROW = re.compile(r"^\| (`[\w.]+`|\*\w+\*) \|([^|]*)\|", re.M)
_NAME = re.compile(r"`([\w.]+)`")
_GROUP = re.compile(r"\*\w+\*")
_NOT_FIELDS = {"exc_info", "stack_info"}


def common_fields() -> frozenset[str]:
    """Those that every line may have."""
    return frozenset(name.strip("`") for name, _ in _ROW.findall(_section("Fields of every line")) if name[0] == "`")


def listed_fields() -> Mapping[str, frozenset[str]]:
    """Event -> its fields, from the tables of the manual. An event that is listed twice raises ValueError."""
    groups = {name: _names(cells) for name, cells in _ROW.findall(_section("Fields of every line")) if name[0] == "*"}
    groups["*settings*"] = SETTINGS
    listed: dict[str, frozenset[str]] = {}
    for name, cells in _ROW.findall(PAGE.read_text(encoding="utf-8").partition("\n## Start and stop\n")[2]):
        event = name.strip("`")
        if event in listed:
            raise ValueError(f"{PAGE.name} lists {event} twice")
        listed[event] = _names(cells).union(*[groups[group] for group in _GROUP.findall(cells)])
    return listed


def unlisted_in(lines: Iterable[str]) -> set[str]:
    """The events of this project in a log of JSON lines that the manual does not list, or not with their fields."""
    listed, common = listed_fields(), common_fields()
    found: set[str] = set()
    for line in lines:
        try:
            fields = json.loads(line)
        except ValueError:  # a traceback, or a line that a kill cut
            continue
        if not isinstance(fields, dict) or not str(fields.get("logger")).startswith("penstock."):
            continue
        event = fields["event"]
        unknown = fields.keys() - listed[event] - common if event in listed else {"not listed"}
        found |= {f"{event}: {field}" for field in unknown}
    return found


def _section(title: str) -> str:
    return PAGE.read_text(encoding="utf-8").split(f"\n## {title}\n")[1].partition("\n## ")[0]


def _names(cells: str) -> frozenset[str]:
    return frozenset(_NAME.findall(cells))


@contextmanager
def unlisted(listed: Mapping[str, frozenset[str]]) -> Iterator[list[str]]:
    """Events that this project's code, not the test itself, logs inside the block and the manual does not list."""
    found: list[str] = []
    process = BoundLoggerBase._process_event

    def check(self: Any, method: str, event: str, fields: dict[str, Any]) -> Any:
        if _is_ours(sys._getframe(1)):
            if event not in listed:
                found.append(event)
            else:
                found.extend(f"{event}: {field}" for field in fields.keys() - listed[event] - _NOT_FIELDS)
        return process(self, method, event, fields)

    with patch.object(BoundLoggerBase, "_process_event", check):
        yield found


def _is_ours(frame: FrameType | None) -> bool:
    """Whether the logger was called in one of the rooms."""
    while frame is not None and frame.f_globals["__name__"].startswith("structlog"):
        frame = frame.f_back
    return frame is not None and frame.f_globals["__name__"].startswith(tuple(f"penstock.{room}." for room in ROOMS))
