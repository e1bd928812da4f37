"""The spans that a worker makes of records, their stages and their batches."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, DEFAULT_OFF
from opentelemetry.trace import SpanKind, StatusCode

from penstock.producer.errors import InvalidRequest, Overloaded
from penstock.producer.tracing.tracing import Tracing
from penstock.producer.wire.headers import TRACEPARENT, request_headers
from penstock.worker.batching.batch import BatchStats, Sums
from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.record_fields import record_fields
from penstock.worker.requests.request import Rejection
from penstock.worker.requests.sequence_block import SequenceBlock
from penstock.worker.telemetry.request_traces import RequestTraces
from tests.tracing import MemorySpans, context_of, traceparent
from tests.worker.conftest import MakeSequences

MakeRecord = Callable[..., Any]
STATS = BatchStats("timeout", "fifo", 0.0, Sums(7, 25, 4, 3), 0.010, 0.008)
TOPIC = "penstock.requests.tiny"
UNIX_S = 1_700_000_000.0  # at monotonic 100


class Traced:
    """The traces of a worker whose clock is set by the test."""

    def __init__(self, spans: MemorySpans | None = None, *, has_cache: bool = True) -> None:
        self.now = 100.0
        self.spans = spans = spans or MemorySpans()
        self.traces = RequestTraces(
            Tracing(spans.provider),
            model="tiny",
            group_id="group",
            client_id="worker-0",
            has_cache=has_cache,
            clock=lambda: self.now,
        )

    def end(self, *sequences: SequenceBlock) -> None:
        self.traces.ended([sequence.request.record for sequence in sequences])

    def process(self) -> ReadableSpan:
        """The span of the only record."""
        [span] = self.spans.named(f"process {TOPIC}")
        return span


def offset_s(nanoseconds: int | None) -> float:
    assert nanoseconds is not None
    return round(nanoseconds / 1e9 - UNIX_S, 4)


def times(span: ReadableSpan) -> tuple[float, float]:
    return offset_s(span.start_time), offset_s(span.end_time)


def prepared(sequences: list[SequenceBlock], header: bytes | None) -> list[SequenceBlock]:
    """As after the look-up: arrived at 100, tokenized for 2 ms, looked up for 3 ms, queued at 100.005."""
    request = sequences[0].request
    request.address.traceparent = header
    request.times.arrived, request.times.arrived_unix_ms = 100.0, UNIX_S * 1e3
    request.times.tokenize_ms, request.times.cache_ms, request.times.queued = 2.0, 3.0, 100.005
    return sequences


def results(*sequences: SequenceBlock) -> list[tuple[SequenceBlock, Any]]:
    return [(sequence, np.zeros(4, np.float32)) for sequence in sequences]


def test_a_request_is_one_trace_from_its_sender_to_its_acknowledged_reply(make_sequences: MakeSequences) -> None:
    worker = Traced()
    spans = worker.spans
    with spans.tracer.start_as_current_span("send") as sender:
        pass
    sequences = prepared(make_sequences([1, 2], [3, 4, 5, 6]), traceparent(sender))
    worker.traces.begin(sequences)
    worker.now = 100.020
    worker.traces.batch_done(STATS, results(*sequences))
    worker.now = 100.025
    worker.end(sequences[0])

    process = worker.process()
    assert process.kind is SpanKind.CONSUMER
    assert process.parent is not None
    assert process.parent.span_id == sender.get_span_context().span_id
    assert times(process) == (0.0, 0.025)
    expected = {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": TOPIC,
        "messaging.destination.partition.id": "0",
        "messaging.consumer.group.name": "group",
        "messaging.client.id": "worker-0",
        "messaging.kafka.offset": 0,
        "messaging.message.conversation_id": "id",
        "gen_ai.operation.name": "embeddings",
        "gen_ai.request.model": "tiny",
        "gen_ai.usage.input_tokens": 6,
        "penstock.class": "online",
        "penstock.sequences": 2,
        "penstock.cached": 0,
    }
    assert expected.items() <= dict(process.attributes or {}).items()
    assert process.status.status_code is StatusCode.UNSET

    children = [span for span in spans.ended if span.parent and span.parent.span_id == context_of(process).span_id]
    assert {span.name: times(span) for span in children} == {
        "tokenize": (0.0, 0.002),
        "cache": (0.002, 0.005),
        "queue": (0.005, 0.012),
        "engine": (0.012, 0.020),
        "batch tiny": (0.012, 0.020),
        "send penstock.replies": (0.020, 0.025),
    }
    assert {context_of(span).trace_id for span in spans.ended} == {context_of(sender).trace_id}


def test_a_batch_links_to_its_records_and_they_to_it(make_sequences: MakeSequences) -> None:
    worker = Traced()
    spans = worker.spans
    first, second, third = (prepared(make_sequences([1, 2]), None)[0] for _ in range(3))
    third.request.address.traceparent = b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-00"
    worker.traces.begin([first, second, third])
    worker.traces.batch_done(STATS, results(first, second, third))
    worker.end(first, second, third)
    processes = {context_of(span).span_id for span in spans.named(f"process {TOPIC}")}
    [batch] = spans.named("batch tiny")
    assert {link.context.span_id for link in batch.links} == processes
    assert len(processes) == 2
    attributes = dict(batch.attributes or {})
    assert attributes["messaging.batch.message_count"] == 3  # the unsampled one as well
    assert (attributes["penstock.batch.sequences"], attributes["penstock.batch.tokens"]) == (3, 7)
    for engine in spans.named("engine"):
        assert [link.context.span_id for link in engine.links] == [context_of(batch).span_id]


def test_an_answer_from_the_cache_has_no_queue_and_no_engine(make_sequences: MakeSequences) -> None:
    worker = Traced()
    [sequence] = prepared(make_sequences([1, 2]), None)
    sequence.request.num_cached = 1
    worker.traces.begin([sequence])
    worker.end(sequence)
    assert {span.name for span in worker.spans.ended} == {
        "tokenize",
        "cache",
        "send penstock.replies",
        f"process {TOPIC}",
    }
    assert dict(worker.spans.named("cache")[0].attributes or {}) == {"penstock.cached": 1}


def test_a_worker_without_a_cache_has_no_such_stage(make_sequences: MakeSequences) -> None:
    worker = Traced(has_cache=False)
    [sequence] = prepared(make_sequences([1]), None)
    worker.traces.begin([sequence])
    worker.end(sequence)
    assert worker.spans.named("cache") == []


@pytest.mark.parametrize("header", [None, b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-00"])
def test_what_the_sampler_drops_is_not_kept(make_sequences: MakeSequences, header: bytes | None) -> None:
    worker = Traced(MemorySpans(DEFAULT_OFF))
    [sequence] = prepared(make_sequences([1]), header)
    worker.traces.begin([sequence])
    worker.traces.batch_done(STATS, results(sequence))
    worker.traces.rejected([sequence.request.reject(Overloaded("later"))])
    worker.end(sequence)
    assert sequence.request.record.trace is None
    assert worker.spans.ended == ()


def test_an_invalid_header_begins_a_trace_as_none_does(make_sequences: MakeSequences) -> None:
    worker = Traced()
    [sequence] = prepared(make_sequences([1]), b"00-" + b"0" * 32 + b"-" + b"b" * 16 + b"-00")
    worker.traces.begin([sequence])
    worker.end(sequence)
    process = worker.process()
    assert process.parent is None


def test_a_sampler_that_does_not_follow_parents_decides_itself(make_sequences: MakeSequences) -> None:
    worker = Traced(MemorySpans(ALWAYS_ON))
    [sequence] = prepared(make_sequences([1]), b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-00")
    worker.traces.begin([sequence])
    worker.end(sequence)
    process = worker.process()
    assert process.parent is not None
    assert process.parent.trace_id == int("a" * 32, 16)


def test_a_record_that_is_rejected_before_it_is_prepared_is_a_failed_span(make_record: MakeRecord) -> None:
    worker = Traced()
    with worker.spans.tracer.start_as_current_span("send") as sender:
        pass
    headers = [*request_headers(b"id", "penstock.replies", 0, None), (TRACEPARENT, traceparent(sender))]
    record = PendingRecord(make_record(headers=headers), (TOPIC, 0), from_bulk_topic=False)
    error = InvalidRequest("`task` must be a string. Given: a secret")
    worker.traces.rejected([Rejection(record, None, error)])
    record.note_error(error)  # as the delivery stage does
    worker.traces.ended([record])
    process = worker.process()
    assert process.parent is not None
    assert process.parent.span_id == sender.get_span_context().span_id
    assert process.status.status_code is StatusCode.ERROR
    assert process.status.description == "`task` must be a string."  # nothing of the request
    assert dict(process.attributes or {})["error.type"] == "invalid_request"
    assert "a secret" not in process.to_json()


def test_a_record_that_is_given_up_is_no_span(make_sequences: MakeSequences) -> None:
    worker = Traced()
    [sequence] = prepared(make_sequences([1]), None)
    worker.traces.begin([sequence])
    assert worker.spans.ended == ()


def test_log_events_name_the_span_of_the_record(make_sequences: MakeSequences) -> None:
    worker = Traced()
    [sequence] = prepared(make_sequences([1]), None)
    worker.traces.begin([sequence])
    fields = record_fields(sequence.request.record)
    worker.end(sequence)
    process = worker.process()
    context = context_of(process)
    assert fields["trace_id"] == f"{context.trace_id:032x}"
    assert fields["span_id"] == f"{context.span_id:016x}"
    assert fields["trace_flags"] == f"{int(context.trace_flags):02x}"
