"""Shared by tests of traces: an application's tracer provider that keeps its spans in memory."""

from collections.abc import Sequence

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import DEFAULT_ON, Sampler
from opentelemetry.trace import Span, SpanContext

VARIABLES = (
    "OTEL_SDK_DISABLED",
    "OTEL_TRACES_EXPORTER",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_RESOURCE_ATTRIBUTES",
    "OTEL_SERVICE_NAME",
    "OTEL_TRACES_SAMPLER",
    "OTEL_TRACES_SAMPLER_ARG",
)


class MemorySpans:
    """A tracer provider and the spans that have ended."""

    def __init__(self, sampler: Sampler = DEFAULT_ON) -> None:
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.tracer = self.provider.get_tracer("application")
        self._exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def ended(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.ended if span.name == name]

    def install(self, monkeypatch: pytest.MonkeyPatch) -> "MemorySpans":
        """Make this the application's provider until the end of the test: the library lets it be set once."""
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", self.provider)
        return self


def context_of(span: ReadableSpan | Span) -> SpanContext:
    """The ids of a span."""
    context = span.get_span_context()
    assert context is not None
    return context


def traceparent(span: ReadableSpan | Span) -> bytes:
    """The header that names a span."""
    context = context_of(span)
    return b"00-%032x-%016x-%02x" % (context.trace_id, context.span_id, context.trace_flags)
