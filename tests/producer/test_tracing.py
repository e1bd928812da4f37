"""Spans of a client's records: parents, links and headers; whether there are any; faults of their export."""

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, DEFAULT_OFF, DEFAULT_ON, ParentBasedTraceIdRatio, Sampler
from opentelemetry.trace import SpanKind, StatusCode
from structlog.testing import capture_logs

from penstock.producer import BackendError, Overloaded
from penstock.producer.tracing import tracing as tracing_module
from penstock.producer.tracing.own_provider import FaultLog
from penstock.producer.tracing.switch import open_tracing
from penstock.producer.tracing.tracing import Tracing, remote_parent
from penstock.producer.tracing.tracing import within as inside
from penstock.producer.transport.outbox import OutRecord
from penstock.producer.wire.headers import TRACEPARENT, TraceParent, format_traceparent, is_unsampled
from penstock.producer.wire.messages import Reply, Request
from tests.producer.helpers import Loop, Pauses, connected, first_ids, within
from tests.tracing import VARIABLES, MemorySpans, traceparent

SEND = "send penstock.requests.m"


@pytest.fixture(autouse=True)
def untouched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variable names an exporter, and the library logs as before."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    logger = logging.getLogger("opentelemetry")
    kept = logger.handlers[:], logger.propagate
    yield
    logger.handlers[:], logger.propagate = kept


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> MemorySpans:
    return MemorySpans().install(monkeypatch)


def sent_headers(loop: Loop) -> list[bytes | None]:
    return [dict(record.headers).get(TRACEPARENT) for record in loop.records]


async def test_a_record_has_a_span_below_the_callers_and_names_it_in_its_header(
    monkeypatch: pytest.MonkeyPatch, spans: MemorySpans
) -> None:
    async with connected(monkeypatch, first_ids) as (client, loop):
        with spans.tracer.start_as_current_span("call") as call:
            await client.embed(ids=[[1, 2]])
    [span] = spans.named(SEND)
    assert span.kind is SpanKind.PRODUCER
    assert span.parent is not None
    assert (span.parent.span_id, span.links) == (call.get_span_context().span_id, ())
    assert sent_headers(loop) == [traceparent(span)]
    attributes = dict(span.attributes or {})
    expected = {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "penstock.requests.m",
        "messaging.message.body.size": len(loop.records[0].value or b""),
    }
    assert expected.items() <= attributes.items()
    assert str(attributes["messaging.destination.partition.id"]).isdigit()
    assert span.status.status_code is StatusCode.UNSET


async def test_calls_that_share_a_record_are_linked_to_its_span(
    monkeypatch: pytest.MonkeyPatch, spans: MemorySpans
) -> None:
    calls: list[int] = []

    async def call(number: int) -> None:
        with spans.tracer.start_as_current_span("call") as span:
            calls.append(span.get_span_context().span_id)
            await client.embed(ids=[[number, 1], [number, 2]])

    async with connected(monkeypatch, first_ids) as (client, loop):
        await asyncio.gather(*[call(number) for number in range(3)])
    [span] = spans.named(SEND)
    assert span.parent is not None
    assert len(loop.records) == 1
    assert [span.parent.span_id, *[link.context.span_id for link in span.links]] == calls


async def test_every_attempt_is_a_span(monkeypatch: pytest.MonkeyPatch, spans: MemorySpans) -> None:
    answers: list[Any] = [Overloaded("later"), None]

    def answer(request: Request) -> Reply | Overloaded:
        return answers.pop(0) or first_ids(request)

    async with connected(monkeypatch, answer) as (client, loop):
        Pauses(monkeypatch, client)
        with spans.tracer.start_as_current_span("call") as call:
            await client.embed(ids=[[1]])
    sent = spans.named(SEND)
    assert [span.parent and span.parent.span_id for span in sent] == [call.get_span_context().span_id] * 2
    assert sent_headers(loop) == [traceparent(span) for span in sent]


async def test_a_record_that_is_not_sent_has_an_error(monkeypatch: pytest.MonkeyPatch, spans: MemorySpans) -> None:
    def refuse(topic: str, partition: int, records: list[OutRecord]) -> None:
        records[0].done(records, OSError("no broker"))

    async with connected(monkeypatch, first_ids) as (client, loop):
        monkeypatch.setattr(loop, "put", refuse)
        with pytest.raises(BackendError):
            await client.embed(ids=[[1]])
    [span] = spans.named(SEND)
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "no broker")
    assert dict(span.attributes or {})["error.type"] == "OSError"


@pytest.mark.parametrize("has_caller", [True, False])
async def test_an_unsampled_trace_is_named_to_the_worker_and_not_recorded(
    monkeypatch: pytest.MonkeyPatch, has_caller: bool
) -> None:
    spans = MemorySpans(DEFAULT_OFF).install(monkeypatch)
    async with connected(monkeypatch, first_ids) as (client, loop):
        if has_caller:
            with spans.tracer.start_as_current_span("call") as call:
                await client.embed(ids=[[1]])
            assert sent_headers(loop) == [traceparent(call)]
        else:
            await client.embed(ids=[[1]])
    assert spans.ended == ()
    assert all(is_unsampled(header) for header in sent_headers(loop))


async def test_without_a_provider_or_a_variable_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch, first_ids) as (client, loop):
        await client.embed(ids=[[1]])
    assert sent_headers(loop) == [None]


@pytest.mark.slow
def test_opentelemetry_is_not_imported_where_no_variable_names_an_exporter() -> None:
    code = """
import sys
from penstock.producer import Client
from penstock.producer.tracing.switch import calling_span, open_send_spans
import penstock.worker.process, penstock.worker.telemetry.traces
assert open_send_spans("topic", "id") is None and calling_span() is None
print(*[name for name in sys.modules if name.startswith("opentelemetry")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == ("", 0), done.stderr


@pytest.mark.parametrize(
    ("variables", "is_traced"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9"}, True),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_TRACES_EXPORTER": " None ", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, False),
        ({"OTEL_TRACES_EXPORTER": "none,none"}, False),
        ({"OTEL_TRACES_EXPORTER": "console,"}, True),
        ({"OTEL_TRACES_EXPORTER": "", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, True),
        ({"OTEL_TRACES_EXPORTER": " , "}, False),
    ],
)
async def test_the_standard_variables_decide(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], is_traced: bool
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    tracing = open_tracing({"service.name": "x"})
    assert (tracing is not None) is is_traced
    if tracing is not None:
        await within(300, tracing.close())


@pytest.mark.parametrize("exporter", ["zipkin", "otlp,no-such"])
def test_an_exporter_that_is_not_installed_is_logged_and_fails_nothing(
    monkeypatch: pytest.MonkeyPatch, exporter: str
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", exporter)
    with capture_logs() as logs:
        assert open_tracing({}) is None
    assert [(event["event"], exporter.split(",")[-1] in event["reason"]) for event in logs] == [
        ("tracing_unavailable", True)
    ]


@pytest.mark.parametrize("exporters", ["otlp,none", "none,console", "console, None"])
def test_none_beside_other_exporters_is_logged_and_there_are_no_traces(
    monkeypatch: pytest.MonkeyPatch, exporters: str
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", exporters)
    with capture_logs() as logs:
        assert open_tracing({}) is None
    [event] = logs
    assert "OTEL_TRACES_EXPORTER has `none` beside other exporters" in event["reason"]


def test_the_applications_provider_does_not_depend_on_the_variables(
    monkeypatch: pytest.MonkeyPatch, spans: MemorySpans
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp,none")
    assert open_tracing({}) is not None


@pytest.mark.parametrize(
    ("sampler", "argument", "is_recorded"),
    [
        ("always_off", "", {"sampled": False, "unsampled": False, "crafted": False}),
        ("always_on", "", {"sampled": True, "unsampled": True, "crafted": True}),
        # By the trace id alone, which its sender chooses too: the lower half is compared with a share of its range.
        ("traceidratio", "0.01", {"sampled": False, "unsampled": False, "crafted": True}),
        # The sender's flag wins.
        ("parentbased_traceidratio", "0", {"sampled": True, "unsampled": False, "crafted": True}),
        ("parentbased_always_off", "", {"sampled": True, "unsampled": False, "crafted": True}),
    ],
)
async def test_which_samplers_obey_the_flag_of_a_sender(
    monkeypatch: pytest.MonkeyPatch, sampler: str, argument: str, is_recorded: dict[str, bool]
) -> None:
    """As the manual tells operators whose producers are not trusted."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", argument)
    tracing = open_tracing({})
    assert tracing is not None
    headers = {
        "sampled": format_traceparent(2**128 - 1, 1, 1),
        "unsampled": format_traceparent(2**128 - 1, 1, 0),
        "crafted": format_traceparent(2**64, 1, 1),
    }
    found = {}
    for name, header in headers.items():
        span = tracing.tracer.start_span("process", inside(remote_parent(header)))
        found[name] = span.is_recording()
    await within(300, tracing.close())
    assert found == is_recorded


def test_without_the_extra_the_log_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    monkeypatch.delitem(sys.modules, "penstock.producer.tracing.own_provider", raising=False)
    with capture_logs() as logs:
        assert open_tracing({}) is None
    [event] = logs
    assert "pip install 'penstock[otel]'" in event["reason"]


@pytest.mark.parametrize(
    ("sampler", "follows"),
    [(DEFAULT_ON, True), (DEFAULT_OFF, True), (ParentBasedTraceIdRatio(0.01), True), (ALWAYS_ON, False)],
)
def test_samplers_that_follow_an_unsampled_parent_are_recognised(sampler: Sampler, follows: bool) -> None:
    assert Tracing(TracerProvider(sampler=sampler, shutdown_on_exit=False)).follows_parents is follows


def test_what_the_library_logs_is_logged_once_a_minute_and_without_its_arguments() -> None:
    times = iter((1000.0, 1000.5, 1059.9, 1060.0, 1061.0))
    faults = FaultLog(lambda: next(times))
    record = logging.LogRecord("opentelemetry.x", logging.ERROR, "f", 1, "bad header %s", ("token=secret",), None)
    with capture_logs() as logs:
        for _ in range(5):
            faults.handle(record)
    assert [(event["reason"], event["left_out"]) for event in logs] == [
        ("opentelemetry.x: bad header %s", 0),
        ("opentelemetry.x: bad header %s", 2),
    ]


async def test_the_end_exports_what_is_left() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=3_600_000))
    tracing = Tracing(provider, provider.shutdown)
    tracing.tracer.start_span("last").end()
    await within(300, tracing.close())
    assert [span.name for span in exporter.get_finished_spans()] == ["last"]


async def test_an_export_that_hangs_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing_module, "FLUSH_S", 0.05)
    hung = threading.Event()

    def hang() -> None:
        hung.wait()

    tracing = Tracing(trace.NoOpTracerProvider(), hang)
    await within(300, tracing.close())
    hung.set()


def test_the_resource_is_the_variables_and_then_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.producer.tracing.own_provider import own_provider

    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=theirs,deployment.environment.name=test")
    provider = own_provider({"service.name": "ours", "service.version": "1"}, ["console"])
    provider.shutdown()
    attributes = provider.resource.attributes
    assert [attributes[f"service.{name}"] for name in ("name", "version")] == ["theirs", "1"]
    assert attributes["deployment.environment.name"] == "test"


def test_a_header_is_read_as_it_is_written() -> None:
    header = format_traceparent(0xABC, 0xDEF, 1)
    context = remote_parent(header)
    assert context is not None
    assert (context.trace_id, context.span_id, int(context.trace_flags), context.is_remote) == (0xABC, 0xDEF, 1, True)
    assert TraceParent.parse(header) == (f"{0xABC:032x}", f"{0xDEF:016x}", "01")
    assert not is_unsampled(header)
    assert is_unsampled(format_traceparent(1, 2, 0))
    assert not is_unsampled(None)
    assert is_unsampled(format_traceparent(1, 2, 0).replace(b"00-", b"cc-", 1) + b"-of a later version")


@pytest.mark.parametrize(
    "header",
    [
        b"00-short",
        b"nonsense",
        b"00-" + b"0" * 32 + b"-" + b"b" * 16 + b"-00",
        b"00-" + b"a" * 32 + b"-" + b"0" * 16 + b"-00",
        b"00-" + b"A" * 32 + b"-" + b"b" * 16 + b"-00",
        b"ff-" + b"a" * 32 + b"-" + b"b" * 16 + b"-00",
        b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-0g",
        b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-00-of a later version",
        b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-00\n",
        b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-000",
        b"x" * 54 + b"0",
    ],
)
def test_an_invalid_header_is_as_none(header: bytes) -> None:
    assert remote_parent(header) is None
    assert not is_unsampled(header)
