"""One route: from a record of its input topic to a request, and from results to the record of its output topic."""

from collections.abc import Sequence

from penstock.engine.types import ModelInfo
from penstock.producer.errors import InvalidRequest, UnsupportedTask
from penstock.producer.wire.messages import Request, Text
from penstock.producer.wire.options import check_applicable, check_options
from penstock.producer.wire.plain_rows import PlainRow
from penstock.worker.routes.chunks import chunk_size, of_chunk_record
from penstock.worker.routes.connect_json import EXAMPLES
from penstock.worker.routes.formats import format_of
from penstock.worker.routes.revision_field import RevisionField
from penstock.worker.routes.schema_registry import SchemaRegistry
from penstock.worker.routes.settings import RouteSettings
from penstock.worker.routes.text_source import TextSource


class Route:
    """Pure: bytes in, bytes out. Called on the event loop."""

    def __init__(self, settings: RouteSettings, info: ModelInfo, registry: SchemaRegistry | None = None) -> None:
        """Raises UnsupportedTask, InvalidRequest and WrongArgument for a task or an option that does not fit."""
        self.input_topic, self.output_topic = settings.input_topic, settings.output_topic
        self.is_bulk, self.writes_json = settings.route_class == "bulk", settings.writes_json
        self.max_age_s = None if settings.max_age_ms is None else settings.max_age_ms / 1e3
        self.task = settings.task or _task_of(info)
        self._model = info.name
        self._query = settings.query
        self._text = TextSource.parse(settings.text or "")
        self._missing = settings.missing_text
        self._options = check_options(settings.request_options)
        check_applicable(self._options, self.task, is_text=True)
        self.chunks = chunk_size(settings, self.task, info)
        self.has_chunk_records = settings.chunk_output == "records"  # each chunk is a record
        revision = RevisionField.of(settings, info)
        is_chunked = self.chunks is not None
        self.format = format_of(settings, self.task, self._options, registry, revision, is_chunked=is_chunked)

    def request(self, value: bytes) -> Request | None:
        """The request in a record's value; None: it has no text, and is passed on.

        Raises:
            InvalidRequest: the value is not of the route's format, its text is not text, or is missing and may not be.
        """
        text = self._text.read(self.format.read(value))
        if text is None:
            if self._missing != "reject" or self.format.lacks_object(value):
                return None
            raise InvalidRequest("The record has no text.")
        return self.asking(text)

    def asking(self, text: str) -> Request:
        """The request for a text."""
        asked: Text = text if self._query is None else (self._query, text)
        return Request(self._model, self.task, text=(asked,), options=self._options)

    def chunk_values(self, original: bytes, chunks: Sequence[dict[str, PlainRow]]) -> Sequence[bytes]:
        """The values of the records of a record's chunks, from the results of `of_chunk`.

        Raises:
            InvalidRequest: the record has no place for a result, or its chunks are too large together.
        """
        text = self._text.read(self.format.read(original)) or ""
        found = [
            of_chunk_record(number, len(chunks), text[chunk["start"] : chunk["end"]], chunk)
            for number, chunk in enumerate(chunks)
        ]
        return self.format.write_each(original, found)

    def passed(self, original: bytes | None) -> bytes | None:
        """The value of a record without a text: as it came, or with null as its result if the route says so.

        A delete has no object that could get a result: it stays as it came.

        Raises:
            InvalidRequest: it has no place for a null.
        """
        if original is None:
            return None
        if self._missing != "null" or self.format.lacks_object(original):
            return self.format.passed(original)
        return self.format.write(original, None)


def _task_of(info: ModelInfo) -> str:
    """The task of a route that names none, and so has no query."""
    task = info.natural_task
    if task == "rerank":
        raise UnsupportedTask(
            f"{info.name!r} reranks, which needs a query. Name task rerank and query, or another task."
        )
    if task not in EXAMPLES:
        raise UnsupportedTask(f"{info.name!r} has no task that a route can have.")
    return task
