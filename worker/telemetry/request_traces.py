"""The spans of a worker: `process <topic>` with its stages for each sampled record, and one for each batch."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode, set_span_in_context

from penstock.producer.errors import PenstockError
from penstock.producer.tracing.tracing import Tracing, remote_parent, within
from penstock.producer.wire.headers import CORRELATION_ID, TRACEPARENT, is_unsampled
from penstock.producer.wire.messages import EMBEDDING_TASKS
from penstock.worker.batching.batch import BatchStats
from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.record_fields import unquoted_reason
from penstock.worker.requests.record_trace import RecordTrace, TracedStage
from penstock.worker.requests.request import PendingRequest, Rejection
from penstock.worker.requests.sequence_block import SequenceBlock, SequenceResults
from penstock.worker.telemetry.request_samples import correlation_text

_GEN_AI_OPERATIONS = dict.fromkeys(EMBEDDING_TASKS, "embeddings")  # the conventions have no names for the other tasks

_Attributes = dict[str, str | int | float]


class RequestTraces:
    """Traces the records that a worker answers. Spans of stages are made when the answer is acknowledged."""

    def __init__(
        self,
        tracing: Tracing,
        *,
        model: str,
        group_id: str,
        client_id: str,
        has_cache: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tracing = tracing
        self._clock = clock
        self._tracer = tracing.tracer
        self._has_cache = has_cache
        self._batch_name = f"batch {model}"
        self._process: _Attributes = {
            "messaging.system": "kafka",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.consumer.group.name": group_id,
            "messaging.client.id": client_id,
        }
        self._reply: _Attributes = {
            "messaging.system": "kafka",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
        }
        self._gen_ai: _Attributes = {"gen_ai.provider.name": "penstock", "gen_ai.request.model": model}

    def begin(self, sequences: Sequence[SequenceBlock]) -> None:
        """See `Traces`."""
        traced: dict[PendingRequest, int] = {}  # tokens of each request that may be traced
        for sequence in sequences:
            request = sequence.request
            if not self._is_dropped(request.address.traceparent):
                traced[request] = traced.get(request, 0) + sum(sequence.lengths)
        for request, num_tokens in traced.items():
            self._begin_request(request, num_tokens)

    def _is_dropped(self, traceparent: bytes | None) -> bool:
        """Whether the sender's decision not to record a trace is this worker's too."""
        return self._tracing.follows_parents and is_unsampled(traceparent)

    def _begin_request(self, request: PendingRequest, num_tokens: int) -> None:
        times = request.times
        clock_ns = int((times.arrived_unix_ms / 1e3 - times.arrived) * 1e9)
        trace = self._begin(request.record, request.address.traceparent, times.arrived, clock_ns)
        if trace is None:
            return
        trace.span.set_attributes(self._gen_ai | _request_attributes(request, num_tokens))
        trace.note_reply(request.address.topic)
        prepared = times.arrived + times.tokenize_ms / 1e3
        trace.add(TracedStage("tokenize", times.arrived, prepared))
        if self._has_cache:
            looked_up = prepared + times.cache_ms / 1e3
            trace.add(TracedStage("cache", prepared, looked_up, {"penstock.cached": request.num_cached}))

    def _begin(
        self, record: PendingRecord, traceparent: bytes | None, arrived: float, clock_ns: int
    ) -> RecordTrace | None:
        """Begin the span of a record. None if the sampler does not record it: what it does not need is added later."""
        topic = record.original.topic
        span = self._tracer.start_span(
            f"process {topic}",
            within(remote_parent(traceparent)),
            SpanKind.CONSUMER,
            {**self._process, "messaging.destination.name": topic},
            start_time=clock_ns + int(arrived * 1e9),
        )
        if not span.is_recording():
            return None
        span.set_attributes(_record_attributes(record))
        trace = RecordTrace(span, _ids(span.get_span_context()), clock_ns, arrived, None)
        record.begin_trace(trace)
        return trace

    def batch_done(self, stats: BatchStats, results: SequenceResults) -> None:
        """See `Traces`.

        The batch's span links to those of its records. Its parent is the first of them, so that it is recorded exactly
        when one of them is.
        """
        traced: dict[RecordTrace, float] = {}  # when its sequences were queued
        for sequence, _ in results:
            if (trace := sequence.request.record.trace) is not None:
                traced[trace] = sequence.request.times.queued
        if not traced:
            return
        now = self._clock()
        started = now - stats.device_s
        batch = self._batch(stats, results, list(traced), started, now)
        for trace, queued in traced.items():
            trace.add(TracedStage("queue", min(queued, started), started))
            trace.add(TracedStage("engine", started, now, link=batch))

    def _batch(
        self, stats: BatchStats, results: SequenceResults, traces: Sequence[RecordTrace], started: float, ended: float
    ) -> SpanContext:
        spans = [trace.span for trace in traces]
        span = self._tracer.start_span(
            self._batch_name,
            set_span_in_context(spans[0], Context()),
            SpanKind.INTERNAL,
            {
                "messaging.system": "kafka",
                "messaging.batch.message_count": len({sequence.request for sequence, _ in results}),
                "penstock.batch.sequences": stats.sums.count,
                "penstock.batch.tokens": stats.sums.tokens,
                "penstock.batch.trigger": stats.trigger,
                "penstock.batch.predicted_ms": round(stats.predicted_s * 1e3, 3),
            },
            [Link(one.get_span_context()) for one in spans],
            traces[0].unix_ns(started),
        )
        span.end(traces[0].unix_ns(ended))
        return span.get_span_context()

    def rejected(self, rejections: Sequence[Rejection]) -> None:
        """See `Traces`. A record that is rejected before its sequences are prepared has no stages."""
        for record, address, _ in rejections:
            trace = record.trace
            if trace is None:
                traceparent = dict(record.original.headers).get(TRACEPARENT)
                if self._is_dropped(traceparent):
                    continue
                now = self._clock()
                trace = self._begin(record, traceparent, now, time.time_ns() - int(now * 1e9))
            if trace is not None and address is not None:
                trace.note_reply(address.topic)

    def ended(self, records: Sequence[PendingRecord]) -> None:
        """See `Traces`."""
        now = self._clock()
        for trace in [record.trace for record in records if record.trace is not None]:
            span: Span = trace.span
            inside = set_span_in_context(span, Context())
            for stage in trace.stages:
                self._end_stage(trace, stage, inside)
            if trace.reply_topic is not None:
                self._end_reply(trace, trace.reply_topic, inside, now)
            if trace.error is not None:
                _mark_failed(span, trace.error)
            span.end(trace.unix_ns(now))

    def _end_stage(self, trace: RecordTrace, stage: TracedStage, inside: Context) -> None:
        links = None if stage.link is None else [Link(stage.link)]
        started, ended = trace.unix_ns(stage.started), trace.unix_ns(stage.ended)
        span = self._tracer.start_span(stage.name, inside, SpanKind.INTERNAL, stage.attributes, links, started)
        span.end(ended)

    def _end_reply(self, trace: RecordTrace, topic: str, inside: Context, acknowledged: float) -> None:
        attributes = self._reply | {"messaging.destination.name": topic}
        started = trace.unix_ns(trace.settled)
        span = self._tracer.start_span(f"send {topic}", inside, SpanKind.PRODUCER, attributes, start_time=started)
        span.end(trace.unix_ns(acknowledged))


def _record_attributes(record: PendingRecord) -> _Attributes:
    original = record.original
    attributes: _Attributes = {
        "messaging.destination.partition.id": str(original.partition),
        "messaging.kafka.offset": original.offset,
        "messaging.message.body.size": record.num_bytes,
    }
    correlation_id = correlation_text(dict(original.headers).get(CORRELATION_ID))
    return attributes if correlation_id is None else attributes | {"messaging.message.conversation_id": correlation_id}


def _request_attributes(request: PendingRequest, num_tokens: int) -> _Attributes:
    task = request.message.task
    return {
        "gen_ai.operation.name": _GEN_AI_OPERATIONS.get(task, task),
        "gen_ai.usage.input_tokens": num_tokens,
        "penstock.class": "bulk" if request.bulk else "online",
        "penstock.sequences": len(request.results),
        "penstock.cached": request.num_cached,
        "penstock.kafka_ms": round(request.times.arrived_unix_ms - request.record.original.timestamp, 3),
    }


def _mark_failed(span: Span, error: PenstockError) -> None:
    span.set_attribute("error.type", error.code)
    span.set_status(StatusCode.ERROR, unquoted_reason(error))


def _ids(context: SpanContext) -> dict[str, Any]:
    """As log events name them."""
    flags = f"{int(context.trace_flags):02x}"
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}", "trace_flags": flags}
