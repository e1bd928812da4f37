"""The log as a terminal shows it: a reader's lines, where a file has an operator's."""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog
from aiokafka.errors import KafkaError


def console_processors() -> list[Any]:
    """The last processors of a line of text."""
    # The default prints the values of local variables, and so payloads.
    return [_chosen_settings, structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]


def _chosen_settings(logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Reduce `settings_resolved` to the settings that were given or found; the others are defaults."""
    if event["event"] != "settings_resolved":
        return event
    reasons = event.pop("reasons")
    is_default = {name for reason, names in reasons.items() if reason.startswith("default") for name in names}
    return {name: value for name, value in event.items() if name not in is_default and value is not None}


class Retried(logging.Filter):
    """Leaves out what aiokafka tries again by itself, as while the leader of a new topic is not known yet.

    What it does not overcome is an event of the worker.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Called by the handler."""
        arguments = record.args if isinstance(record.args, tuple) else ()
        return not (record.name.startswith("aiokafka") and any(map(_is_retriable, arguments)))


def _is_retriable(argument: object) -> bool:
    kind: Any = argument if isinstance(argument, type) else type(argument)
    return issubclass(kind, KafkaError) and bool(kind.retriable)


class ReadyLines(logging.StreamHandler[Any]):
    """Tells on stderr, as text, that a worker is ready whose log is a file."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(formatter)
        self.addFilter(lambda record: isinstance(record.msg, dict) and record.msg.get("event") == "worker_ready")
