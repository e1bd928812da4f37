"""One trace from a call to its reply: a client's spans, and those that the members of a worker export."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from penstock.ops.kafka import KafkaBroker
from penstock.producer import Client, InvalidRequest
from penstock.producer.tracing.tracing import FLUSH_S
from penstock.producer.wire.messages import Request, join_tokens
from penstock.producer.wire.topics import request_topic
from tests.integration.conftest import PENSTOCK, StartWorker, Unique
from tests.tracing import MemorySpans, context_of

EXIT_S = 25.0


class Exported(NamedTuple):
    """A span that the collector got, with its attributes and those of its process as plain data."""

    span: Span
    attributes: dict[str, Any]
    resource: dict[str, Any]


class Collector:
    """Receives traces as OTLP over HTTP, as an OpenTelemetry collector does."""

    def __init__(self) -> None:
        self.spans: list[Exported] = []
        spans = self.spans

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
                spans.extend(exported(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def named(self, name: str) -> list[Exported]:
        return [one for one in self.spans if one.span.name == name]


def exported(request: ExportTraceServiceRequest) -> Iterator[Exported]:
    for resource in request.resource_spans:
        of_process = plain(resource.resource.attributes)
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Exported(span, plain(span.attributes), of_process)


def plain(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """The collector to which workers that are started now export."""
    received = Collector()
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.url)
    yield received
    received.server.shutdown()
    received.server.server_close()


async def test_a_call_is_one_trace_through_the_client_the_members_their_cache_and_their_batches(
    kafka: KafkaBroker,
    unique: Unique,
    start_worker: StartWorker,
    collector: Collector,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    spans = MemorySpans().install(monkeypatch)
    model, group = unique("traced"), unique("group")
    worker = start_worker(
        kafka, PENSTOCK, served_name=model, processes=2, group_id=group, cache_path=tmp_path / "cache.sqlite"
    )
    async with Client(
        bootstrap_servers=kafka.bootstrap_servers, model=model, timeout_s=300, batch_calls=False
    ) as client:
        await worker.until(
            lambda: {} if len({e["pid"] for e in worker.events("partitions_assigned")}) == 2 else None, "members", 60
        )
        with spans.tracer.start_as_current_span("call") as call:
            for first in range(1, 65, 4):  # what is sent together shares a partition, and so a member
                await asyncio.gather(*[client.embed(ids=[[n, n + 1, 5]]) for n in range(first, first + 4)])
            with pytest.raises(InvalidRequest):
                await client.embed(ids=[[2**31]])
            async with asyncio.timeout(300):
                while not await is_cached(client, model):
                    pass  # the cache is written behind
        topic = request_topic(model)
        async with asyncio.timeout(300):
            while len(collector.named(f"process {topic}")) < len(spans.named(f"send {topic}")):  # noqa: ASYNC110 — no event
                await asyncio.sleep(0.05)
    await worker.stop()

    context = call.get_span_context()
    sent = {context_of(span).span_id: span for span in spans.named(f"send {topic}")}
    assert {span.parent and span.parent.span_id for span in sent.values()} == {context.span_id}

    processed = collector.named(f"process {topic}")
    assert {int.from_bytes(one.span.trace_id, "big") for one in collector.spans} == {context.trace_id}
    assert sorted(int.from_bytes(one.span.parent_span_id, "big") for one in processed) == sorted(sent)
    assert {one.span.kind for one in processed} == {Span.SPAN_KIND_CONSUMER}
    for one in processed:
        sender = sent[int.from_bytes(one.span.parent_span_id, "big")]
        assert sender.attributes is not None
        same = "messaging.destination.partition.id", "messaging.message.conversation_id", "messaging.message.body.size"
        assert [one.attributes[name] for name in same] == [sender.attributes[name] for name in same]
        assert one.attributes["messaging.system"] == "kafka"
        assert one.attributes["messaging.destination.name"] == topic
        assert one.attributes["messaging.consumer.group.name"] == group
        assert one.attributes["messaging.kafka.offset"] >= 0
    offsets = {
        (one.attributes["messaging.destination.partition.id"], one.attributes["messaging.kafka.offset"])
        for one in processed
    }
    assert len(offsets) == len(processed)
    assert len({one.resource["service.instance.id"] for one in processed}) == 2
    assert {one.resource["service.name"] for one in processed} == {"penstock-worker"}

    [failed] = [one for one in processed if one.span.status.code == Status.STATUS_CODE_ERROR]
    assert failed.attributes["error.type"] == "bad_token_id"
    answered = [one for one in processed if one is not failed]
    assert {one.attributes["gen_ai.operation.name"] for one in answered} == {"embeddings"}
    assert {one.attributes["gen_ai.usage.input_tokens"] for one in answered} == {3}

    computed = [one for one in answered if not one.attributes["penstock.cached"]]
    assert len(computed) >= 64
    assert {tuple(sorted(stages(collector, one))) for one in computed} == {
        ("cache", "engine", "queue", "send penstock.replies", "tokenize")
    }
    assert {tuple(sorted(stages(collector, one))) for one in answered if one.attributes["penstock.cached"]} == {
        ("cache", "send penstock.replies", "tokenize")
    }
    batches = {one.span.span_id: one for one in collector.named(f"batch {model}")}
    linked = [link.span_id for one in batches.values() for link in one.span.links]
    assert sorted(linked) == sorted(one.span.span_id for one in computed)
    assert sum(one.attributes["messaging.batch.message_count"] for one in batches.values()) == len(computed)
    by_id = {one.span.span_id: one for one in processed}
    for engine in collector.named("engine"):
        [link] = engine.span.links
        assert engine.span.parent_span_id in [back.span_id for back in batches[link.span_id].span.links]
        process = by_id[engine.span.parent_span_id].span
        assert process.start_time_unix_nano <= engine.span.start_time_unix_nano <= engine.span.end_time_unix_nano
        assert engine.span.end_time_unix_nano <= process.end_time_unix_nano
    ids = {one.span.span_id.hex() for one in processed}
    assert {event["span_id"] for event in worker.events("request_done")} <= ids
    assert {event["trace_id"] for event in worker.events("request_done")} == {f"{context.trace_id:032x}"}


async def is_cached(client: Client, model: str) -> bool:
    return bool((await client.request(Request(model, "embed", join_tokens([[1, 2, 5]])))).cached)


def stages(collector: Collector, process: Exported) -> list[str]:
    """The names of the spans below a record's, without the batch that the first of its records has as well."""
    below = [one.span.name for one in collector.spans if one.span.parent_span_id == process.span.span_id]
    return [name for name in below if not name.startswith("batch ")]


async def test_without_a_collector_requests_are_answered_and_the_worker_ends_in_time(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts connections and never answers
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        model = unique("untraced")
        worker = start_worker(kafka, served_name=model)
        async with Client(bootstrap_servers=kafka.bootstrap_servers, model=model, timeout_s=300) as client:
            await worker.ready()
            await client.embed(ids=[[1, 2]])
            await worker.event("tracing_fault")
            await client.embed(ids=[[3, 4]])
            started = time.monotonic()
        assert time.monotonic() - started < FLUSH_S + EXIT_S
        worker.process.terminate()
        started = time.monotonic()
        assert await worker.exit_code() == 0
        assert time.monotonic() - started < FLUSH_S + EXIT_S
    assert len(worker.events("tracing_fault")) == 1  # the export at the end failed as well
