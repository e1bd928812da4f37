"""Structured logs by structlog, for this project's events and for what libraries log. No payloads."""

import contextlib
import functools
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping
from importlib.metadata import version
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any

import structlog

from penstock.worker.telemetry.console import ReadyLines, Retried, console_processors
from penstock.worker.telemetry.ecs import to_ecs

_SERVICE = "penstock-worker"
_REPEAT_S = 60.0
_PRINT_TEXT = frozenset({"transformers", "huggingface_hub"})  # libraries with handlers of their own
_MOST_A_SECOND = 100  # lines of one event

_labels: dict[str, object] = {}  # of this process


def configure_logs(log_format: str, level: str, log_file: Path | None = None, **labels: object) -> None:
    """Set up logging, first in a process. `log_format`: "auto" (console on a terminal), "json", "ecs", "console".

    `log_file`: None for stderr. `labels` and the process id are on every line, unless an event has a field of that
    name. The attributes of the service are on every line of JSON. Raises OSError if the file cannot be opened.
    """
    is_on_terminal = log_file is None and sys.stderr.isatty()
    to_console = log_format == "console" or (log_format == "auto" and is_on_terminal)
    handler: logging.Handler = logging.StreamHandler(sys.stderr) if log_file is None else LogFile(log_file)
    _labels.clear()
    label_logs({"pid": os.getpid(), **labels, **({} if to_console else service_attributes())})
    shared = _configure_structlog()
    rendering = console_processors() if to_console else _json(to_ecs if log_format == "ecs" else None)
    handler.setFormatter(_formatter(shared, rendering))
    if to_console:
        handler.addFilter(Retried())
    handler.addFilter(RepeatFilter(_REPEAT_S))
    handlers = [handler]
    if log_file is not None:
        handlers.append(ReadyLines(_formatter(shared, console_processors())))
    _replace_handlers(handlers)
    logging.getLogger("penstock").setLevel(level.upper())


def _formatter(shared: list[Any], rendering: list[Any]) -> logging.Formatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering]
    )


def _configure_structlog() -> list[Any]:
    """Send this project's events to the standard library's loggers. Returns the processors of every line."""
    shared: list[Any] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        lambda logger, method, event: {**_labels, **event},
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            EventLimit(_MOST_A_SECOND),
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET),  # `filter_by_level` decides
        cache_logger_on_first_use=True,
    )
    return shared


def _replace_handlers(handlers: list[logging.Handler]) -> None:
    """Make these the only handlers of the process, for warnings and for libraries too."""
    root = logging.getLogger()
    for earlier in root.handlers:
        if isinstance(earlier, LogFile):
            earlier.close()
    root.handlers[:] = handlers
    root.setLevel(logging.WARNING)
    logging.setLoggerClass(LibraryLogger)
    logging.captureWarnings(True)


def label_logs(labels: Mapping[str, object]) -> None:
    """Add labels to every later line of this process."""
    _labels.update(labels)


def _json(rename: Any) -> list[Any]:
    renames = [] if rename is None else [rename]
    return [structlog.processors.format_exc_info, *renames, structlog.processors.JSONRenderer()]


class LogFile(WatchedFileHandler):
    """A file that is opened again once it was moved or removed, as logrotate does, before the next line.

    Members of a supervisor write into one file: it is opened for appending, and a line is one write.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8")
        self._told = -_REPEAT_S  # when a fault was told, in monotonic seconds

    def emit(self, record: logging.LogRecord) -> None:
        """Called by `Handler.handle`. A file that cannot be opened again is tried at each line."""
        try:
            super().emit(record)
        except OSError:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Called where an exception is handled. A line that the file cannot take, as on a full disk, goes to stderr."""
        fault = sys.exception()
        if not isinstance(fault, OSError):
            super().handleError(record)
            return
        with contextlib.suppress(OSError):  # of stderr
            now = time.monotonic()
            if now - self._told >= _REPEAT_S:
                self._told = now
                reason = fault.strerror or fault
                print(f"{self.baseFilename} cannot be written: {reason}. Its lines go to stderr.", file=sys.stderr)
            print(self.format(record), file=sys.stderr)
        with contextlib.suppress(OSError):  # what is buffered is not written later: it was told
            stream, self.stream = self.stream, None
            if stream is not None:
                stream.close()


class LibraryLogger(logging.Logger):
    """The class of loggers that are made from `configure_logs` on.

    transformers, once it is imported, gives its logger a handler of its own, which prints text, and stops propagation.
    The messages of such libraries go to the root's handler only.
    """

    def callHandlers(self, record: logging.LogRecord) -> None:
        """Called by `Logger.handle`."""
        prints_text = self.name.partition(".")[0] in _PRINT_TEXT
        (logging.getLogger().callHandlers if prints_text else super().callHandlers)(record)


class EventLimit:
    """A processor that passes `most` lines of one event in a second, so that no fault fills the disk.

    The next line that passes has `suppressed`, the number of those that did not.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._second = -1
        self._passed: dict[str, int] = {}  # in this second
        self._suppressed: dict[str, int] = {}

    def __call__(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Called by structlog, on any thread. Raises DropEvent."""
        second, name = int(self._clock()), event["event"]
        if second != self._second:
            self._second, self._passed = second, {}
        passed = self._passed.get(name, 0)
        if passed == self._most:
            self._suppressed[name] = self._suppressed.get(name, 0) + 1
            raise structlog.DropEvent
        self._passed[name] = passed + 1
        if suppressed := self._suppressed.pop(name, 0):
            event["suppressed"] = suppressed
        return event


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


@functools.cache
def service_attributes() -> Mapping[str, str]:
    """This process in OpenTelemetry's attributes: labels of logs, and the resource of traces.

    The name, which `OTEL_SERVICE_NAME` changes, the version, and an instance id that no other process has.
    """
    return {
        "service.name": os.environ.get("OTEL_SERVICE_NAME") or _SERVICE,
        "service.version": version("penstock"),
        "service.instance.id": f"{socket.gethostname()}-{os.getpid()}",
    }
