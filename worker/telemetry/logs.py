"""Structured logs by structlog, for this project's events and for what libraries log. No payloads."""

import logging
import sys
import time
from typing import Any

import structlog

_REPEAT_S = 60.0


def configure_logs(log_format: str, level: str, **labels: object) -> None:
    """Set up logging, first in a process. `log_format`: "auto" (console on a terminal), "json", "console".

    `labels` are on every line, except where an event has a field of that name.
    """
    to_console = log_format == "console" or (log_format == "auto" and sys.stderr.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        lambda logger, method, event: {**labels, **event},
    ]
    renderer: Any = structlog.dev.ConsoleRenderer() if to_console else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET),  # `filter_by_level` decides
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(RepeatFilter(_REPEAT_S))
    exceptions = [] if to_console else [structlog.processors.format_exc_info]
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *exceptions, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("penstock").setLevel(level.upper())


class RepeatFilter(logging.Filter):
    """Passes a library's message once in `repeat_s` seconds: aiokafka logs each retry while a broker is away."""

    def __init__(self, repeat_s: float) -> None:
        super().__init__()
        self._repeat_s = repeat_s
        self._last: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.startswith("penstock"):
            return True
        message = (record.name, str(record.msg))
        now = time.monotonic()
        if now - self._last.get(message, -self._repeat_s) < self._repeat_s:
            return False
        self._last[message] = now
        return True
