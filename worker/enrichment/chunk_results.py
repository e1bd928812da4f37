"""The result of an enriched record: of its text, or of each chunk of it."""

from collections.abc import Sequence

from penstock.producer.wire.messages import Row
from penstock.producer.wire.plain_rows import PlainRow, plain_row
from penstock.worker.requests.request import PendingRequest
from penstock.worker.routes.chunks import of_chunk


def plain_result(request: PendingRequest, rows: Sequence[Row]) -> PlainRow:
    """The rows of a complete request."""
    plain = [plain_row(request.message.task, row) for row in rows]
    if request.chunks is None:
        return plain[0]
    return [of_chunk(span, row) for span, row in zip(request.chunks, plain, strict=True)]
