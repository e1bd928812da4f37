"""A tracer provider whose exporters, sampler, limits and resource come from OpenTelemetry's environment variables."""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points

import structlog
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

_REPEAT_S = 60.0
_MAX_REASON_CHARS = 300
_PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}

log = structlog.get_logger("penstock.tracing")


def own_provider(service: Mapping[str, str], exporters: Sequence[str]) -> TracerProvider:
    """A provider whose spans a thread exports. They wait in a bounded queue, which drops spans when it is full.

    `exporters`: their names in OTEL_TRACES_EXPORTER.

    Raises ValueError for an exporter that is not installed or not known, and for `none` beside others.
    """
    logger = logging.getLogger("opentelemetry")
    logger.propagate = False
    logger.addHandler(_FAULTS)
    given = OTELResourceDetector().detect().attributes
    resource = Resource.create({name: value for name, value in service.items() if name not in given})
    made = [_exporter(name) for name in exporters]
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)  # which might wait for the collector
    for exporter in made:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _exporter(name: str) -> SpanExporter:
    """The exporter that an installed package registers under a name of OTEL_TRACES_EXPORTER."""
    if name.lower() == "none":
        raise ValueError("OTEL_TRACES_EXPORTER has `none` beside other exporters. Leave one of the two out.")
    if name == "otlp":
        protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        name = _PROTOCOLS.get(protocol or "http/protobuf", protocol or "")
    found = tuple(entry_points(group="opentelemetry_traces_exporter", name=name))
    if not found:
        raise ValueError(f"No exporter of traces is installed under the name {name!r}.")
    exporter: SpanExporter = found[0].load()()
    return exporter


class FaultLog(logging.Handler):
    """Logs what OpenTelemetry says, once a minute: an export that fails is tried again and again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.WARNING)
        self._clock = clock
        self._logged_at = -_REPEAT_S
        self._left_out = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Called by any thread, one at a time."""
        now = self._clock()
        if now - self._logged_at < _REPEAT_S:
            self._left_out += 1
            return
        left_out, self._left_out, self._logged_at = self._left_out, 0, now
        # Not the arguments: they may be headers with credentials.
        log.warning("tracing_fault", reason=f"{record.name}: {record.msg}"[:_MAX_REASON_CHARS], left_out=left_out)


_FAULTS = FaultLog()  # of the process, as the library's loggers are
