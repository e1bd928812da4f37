"""A tracer, how the contexts of spans are carried by records, and the spans `send <topic>` of a client's records."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from importlib.metadata import version

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    TracerProvider,
)

from penstock.producer.wire.headers import TraceParent, format_traceparent

FLUSH_S = 2.0
# What samplers that follow their parents say of themselves. Every sampler of OTEL_TRACES_SAMPLER that begins with
# `parentbased_` is one of these.
_FOLLOWS = ("remoteParentNotSampled:AlwaysOffSampler", "localParentNotSampled:AlwaysOffSampler")


class Tracing:
    """The tracer of one client or worker."""

    def __init__(self, provider: TracerProvider, shut_down: Callable[[], None] | None = None) -> None:
        """`shut_down`: exports what is left, in its own time. None: the application does."""
        self.tracer = provider.get_tracer("penstock", version("penstock"))
        sampler = getattr(provider, "sampler", None)  # of the SDK's provider
        described = "" if sampler is None else sampler.get_description()
        self.follows_parents = all(name in described for name in _FOLLOWS)  # so that an unsampled one needs no span
        self._shut_down = shut_down

    async def close(self) -> None:
        """Export what is left, for `FLUSH_S` at most. Called once, on the event loop, after the last span.

        The thread is a daemon: a collector that does not answer keeps no process.
        """
        if self._shut_down is None:
            return
        loop, ended, shut_down = asyncio.get_running_loop(), asyncio.Event(), self._shut_down

        def run() -> None:
            shut_down()
            with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
                loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=run, name="penstock-traces", daemon=True).start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await ended.wait()


def application_provider() -> TracerProvider | None:
    """The tracer provider that the application has set; None: it has set none."""
    provider = trace.get_tracer_provider()
    return None if isinstance(provider, trace.ProxyTracerProvider) else provider


def within(parent: SpanContext | None) -> Context:
    """The argument `context` of a span with this parent; None: it begins a trace."""
    return Context() if parent is None else trace.set_span_in_context(NonRecordingSpan(parent), Context())


def header_of(context: SpanContext) -> bytes:
    """The `traceparent` header that names a span."""
    return format_traceparent(context.trace_id, context.span_id, context.trace_flags)


def remote_parent(header: bytes | None) -> SpanContext | None:
    """The span that a record's `traceparent` header names; None without a valid header."""
    found = TraceParent.parse(header)
    if found is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in found)
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))


class SendSpan:
    """One attempt to send a record, until the broker has it or refuses it."""

    __slots__ = ("_span", "traceparent")

    def __init__(self, span: Span | None, context: SpanContext) -> None:
        """`span`: None where the trace is not recorded."""
        self._span = span
        self.traceparent = header_of(context)

    def end(self, error: Exception | None) -> None:
        """The broker has the record, or an error says why not."""
        span = self._span
        if span is None:
            return
        if error is not None:
            span.set_attribute("error.type", type(error).__qualname__)
            span.set_status(StatusCode.ERROR, str(error))
        span.end()


class SendSpans:
    """Makes the spans of one client's records. Called on its event loop."""

    def __init__(self, tracing: Tracing, topic: str, client_id: str) -> None:
        self._tracing = tracing
        self._name = f"send {topic}"
        self._attributes = {
            "messaging.system": "kafka",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": topic,
            "messaging.client.id": client_id,
        }

    def start(
        self, partition: int, correlation_id: bytes, num_bytes: int, callers: Sequence[SpanContext]
    ) -> SendSpan | None:
        """The span of a record that is about to be sent; None if no trace needs a header.

        `callers`: the spans of the calls that share the record. The first that is recorded is the parent, and the
        others are linked.
        """
        parent = next((one for one in callers if one.trace_flags.sampled), callers[0] if callers else None)
        if parent is not None and not parent.trace_flags.sampled and self._tracing.follows_parents:
            return SendSpan(None, parent)
        span = self._tracing.tracer.start_span(
            self._name,
            within(parent),
            SpanKind.PRODUCER,
            self._attributes,
            [Link(one) for one in callers if one is not parent],
        )
        context = span.get_span_context()
        if not span.is_recording():
            return SendSpan(None, context) if context.is_valid else None
        span.set_attributes(
            {
                "messaging.destination.partition.id": str(partition),
                "messaging.message.conversation_id": correlation_id.hex(),
                "messaging.message.body.size": num_bytes,
            }
        )
        return SendSpan(span, context)

    async def close(self) -> None:
        """Export what is left, within a bound."""
        await self._tracing.close()
