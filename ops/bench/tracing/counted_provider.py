"""The application's tracer provider of a measured process. Imported only where OpenTelemetry is in use."""

from collections.abc import Sequence

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio


class CountedProvider:
    """Exports as a process does that OpenTelemetry's variables tell to, and counts the spans."""

    def __init__(self, endpoint: str, share: float) -> None:
        """Becomes the provider of this process. `share`: of traces that begin in it."""
        self._exporter = CountedExporter(OTLPSpanExporter(f"{endpoint}/v1/traces"))
        self._provider = TracerProvider(sampler=ParentBasedTraceIdRatio(share), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        trace.set_tracer_provider(self._provider)

    def flush(self) -> None:
        """Export what waits. Blocks."""
        if not self._provider.force_flush():
            raise RuntimeError("The collector did not take the spans in time.")

    def take_count(self) -> int:
        """Number of spans that were exported since the last call."""
        count, self._exporter.num_spans = self._exporter.num_spans, 0
        return count


class CountedExporter(SpanExporter):
    """Another exporter, and the number of spans that it took."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self.num_spans = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            self.num_spans += len(spans)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)
