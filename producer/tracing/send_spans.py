"""The spans `send <topic>` of the records that a client sends."""

from collections.abc import Sequence

from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode

from penstock.producer.tracing.tracing import Tracing, header_of, within


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
