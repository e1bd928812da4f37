"""The door of routes: records of input topics become requests like any other, and their results enriched records."""

import asyncio
import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from penstock.engine.types import ModelInfo
from penstock.producer.errors import BackendError, PenstockError, WrongArgument
from penstock.producer.wire.headers import FINISHED_MS, MODEL, REVISION, SOURCE, TRACEPARENT, ReplyAddress
from penstock.producer.wire.plain_rows import PlainRow
from penstock.scheduler import Cause
from penstock.worker.enrichment.chunk_records import original_key
from penstock.worker.enrichment.chunker import Check, Chunker
from penstock.worker.enrichment.key_order import KeyOrder
from penstock.worker.enrichment.output import Outcome, Output
from penstock.worker.enrichment.output_delivery import OutputDelivery
from penstock.worker.enrichment.replayed import IN_REPLAYS, source_of
from penstock.worker.requests.deadline_errors import deadline_error
from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.request import PendingRequest, Rejection, StageTimes
from penstock.worker.requests.validation import check_names
from penstock.worker.routes.chunks import ChunkSize
from penstock.worker.routes.route import Route
from penstock.worker.routes.schema_registry import SchemaRegistry
from penstock.worker.routes.settings import RouteSettings

_OURS = {MODEL, REVISION, FINISHED_MS, SOURCE}
_CHECK_S = 10.0  # that a start waits for the schema registry, without which requests and other routes can go on


class Router:
    """Called on the event loop. Without routes it knows no topic, and none of its methods is given a record."""

    def __init__(
        self,
        routes: Sequence[RouteSettings],
        info: ModelInfo,
        check: Check,
        registry: SchemaRegistry | None = None,
        chunker: Chunker | None = None,
    ) -> None:
        """`check`: of a request, by the model: it returns the request with its prompt, or raises PenstockError.

        `registry`: of the routes whose records have schemas; None only without them. `chunker`: of the model's
        tokenizer; None: it has none here. Raises WrongArgument for a route that the model cannot serve.
        """
        self._routes: Mapping[str, Route] = {
            one.input_topic: _made(one, info, check, registry, chunker) for one in routes
        }
        self._check = check
        self._chunker = chunker
        self._info = info
        self.order = KeyOrder()

    def has(self, record: PendingRecord) -> bool:
        """Whether a record is of a route."""
        return record.original.topic in self._routes

    def admit(self, records: Iterable[PendingRecord]) -> None:
        """Records were taken, in the order of each partition."""
        if self._routes:
            self.order.admit(filter(self.has, records))

    async def check(self, timeout_s: float = _CHECK_S) -> None:
        """Check at start what can be known of records that have not come. Raises WrongArgument that names the route.

        If the registry is away for longer, `prepare` does so for the first record that needs it.
        """
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._check_formats(), timeout_s)

    async def _check_formats(self) -> None:
        for topic, route in self._routes.items():
            with _naming(topic):
                await route.format.check()

    def is_ready(self, record: PendingRecord) -> bool:
        """Whether a record of any topic can be validated without `prepare`."""
        route, value = self._routes.get(record.original.topic), record.original.value
        return route is None or value is None or route.format.is_ready(value)

    async def prepare(self, records: Sequence[PendingRecord]) -> None:
        """Fetch what records need that are not ready, however long that takes. Then they may be validated.

        Raises WrongArgument for a route that a start would have refused, had the registry been there.
        """
        for topic, route in self._routes.items():
            with _naming(topic):
                await route.format.prepare(
                    [r.original.value for r in records if r.original.topic == topic and r.original.value]
                )

    def split(self, records: Sequence[PendingRecord]) -> tuple[Sequence[PendingRecord], Sequence[PendingRecord]]:
        """Requests, and records of routes."""
        if not self._routes:
            return records, ()
        routed = [record for record in records if self.has(record)]
        return [record for record in records if not self.has(record)], routed

    def validate(
        self, records: Iterable[PendingRecord], now: float, unix_now: float
    ) -> tuple[list[PendingRequest], list[Rejection], list[PendingRecord]]:
        """As `RequestValidator.validate`. The last are passed on: tombstones, and those without a text."""
        times = StageTimes(now, unix_now * 1e3)
        requests: list[PendingRequest] = []
        rejections: list[Rejection] = []
        passed: list[PendingRecord] = []
        for record in records:
            try:
                request = self._request(record, times)
            except PenstockError as error:
                rejections.append(Rejection(record, None, error))
            else:
                if request is None:
                    passed.append(record)
                else:
                    requests.append(request)
        return requests, rejections, passed

    def _request(self, record: PendingRecord, times: StageTimes) -> PendingRequest | None:
        route, original = self._routes[record.original.topic], record.original
        headers = dict(original.headers)
        check_names(headers)
        if route.has_chunk_records:
            original_key(record)
        if original.value is None:
            return None
        deadline = None
        if route.max_age_s is not None:
            deadline = times.arrived + route.max_age_s + (original.timestamp - times.arrived_unix_ms) / 1e3
            if deadline < times.arrived:
                raise deadline_error(Cause.ARRIVED_LATE, times.arrived - deadline)
        if record.is_poison:
            raise BackendError(f"The record ended {record.num_attempts} workers, and is not run again.")
        message = route.request(original.value)
        if message is None:
            return None
        trace = headers.get(TRACEPARENT)
        address = ReplyAddress(route.output_topic, None, None, trace, is_json=route.writes_json)
        if not route.chunks:  # else `chunk` makes texts of it that can be checked
            message = self._check(message, address.is_json)
        return PendingRequest(record, address, message, deadline, route.is_bulk, times)

    async def chunk(self, requests: Sequence[PendingRequest]) -> tuple[Sequence[PendingRequest], Sequence[Rejection]]:
        """Called with what `validate` found. Requests of routes with chunks become requests of their texts' chunks."""
        whole: list[PendingRequest] = []
        asked: list[tuple[PendingRequest, ChunkSize]] = []
        for request in requests:
            size = self._routes[request.record.original.topic].chunks
            if size is None:
                whole.append(request)
            else:
                asked.append((request, size))
        if self._chunker is None or not asked:
            return whole, ()
        chunked, rejections = await self._chunker.split(asked)
        return [*whole, *chunked], rejections

    def outputs(
        self, requests: Sequence[PendingRequest], rows: Sequence[PlainRow], delivery: OutputDelivery
    ) -> tuple[list[Output], list[Rejection]]:
        """The enriched records of complete requests with these results; and those that have no place for them."""
        headers = self._own_headers()
        outputs: list[Output] = []
        rejections: list[Rejection] = []
        for request, row in zip(requests, rows, strict=True):
            record, route = request.record, self._routes[request.record.original.topic]
            try:
                value, chunks = _values(route, record, row)
            except PenstockError as error:
                rejections.append(request.reject(error))
            else:
                sent = _headers(record, headers)
                outcome: Outcome = "cached" if request.is_cached else "ok"
                outputs.append(delivery.output(record, route.output_topic, value, sent, outcome, chunks))
        return outputs, rejections

    def passed(
        self, records: Sequence[PendingRecord], delivery: OutputDelivery
    ) -> tuple[list[Output], list[Rejection]]:
        """Records that go to their output topics without a result; and those that have no place for a null."""
        outputs: list[Output] = []
        rejections: list[Rejection] = []
        for record in records:
            route = self._routes[record.original.topic]
            try:
                value = None if route.has_chunk_records else route.passed(record.original.value)
            except PenstockError as error:
                rejections.append(Rejection(record, None, error))
            else:
                sent, chunks = _headers(record, []), () if route.has_chunk_records else None
                outputs.append(delivery.output(record, route.output_topic, value, sent, "passed", chunks))
        return outputs, rejections

    def _own_headers(self) -> list[tuple[str, bytes]]:
        finished_ms = b"%d" % (time.time() * 1e3)
        info = self._info
        return [(MODEL, info.name.encode()), (REVISION, info.answers_revision.encode()), (FINISHED_MS, finished_ms)]


@contextlib.contextmanager
def _naming(topic: str) -> Iterator[None]:
    """Name the route in the error that refuses it."""
    try:
        yield
    except WrongArgument as error:
        raise WrongArgument(f"The route from {topic}: {error.message}") from error


def _made(
    settings: RouteSettings,
    info: ModelInfo,
    check: Check,
    registry: SchemaRegistry | None,
    chunker: Chunker | None,
) -> Route:
    try:
        route = Route(settings, info, registry)
        check(route.asking("text"), route.writes_json)
        if route.chunks is not None:
            if chunker is None:
                raise WrongArgument("chunk_tokens needs the model's tokenizer, and the model has none here.")
            chunker.require_room(route.asking(""), route.chunks)
    except PenstockError as error:
        raise WrongArgument(f"The route from {settings.input_topic}: {error.message}") from error
    return route


def _values(route: Route, record: PendingRecord, row: PlainRow) -> tuple[bytes | None, Sequence[bytes] | None]:
    """The value of the enriched record, or those of the records of its chunks."""
    original = record.original.value or b""
    if not route.has_chunk_records:
        return route.format.write(original, row), None
    return None, route.chunk_values(original, row)


def _headers(record: PendingRecord, own: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """The headers of the original, without those that an earlier route has added, and ours."""
    source = source_of(record.original)
    dropped = _OURS if source.is_own else _OURS | IN_REPLAYS
    kept = [(name, value) for name, value in record.original.headers if name not in dropped]
    return [*kept, *own, (SOURCE, source.position)]
