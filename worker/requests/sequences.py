"""Requests of the task `sequence`: the fields of each sequence as work for a model made of cells."""

import asyncio

import numpy as np

from penstock.cache import KeySpace
from penstock.engine.types import ModelInfo, TaskOptions
from penstock.producer.errors import InvalidRequest, PenstockError
from penstock.producer.wire.sequence_codec import packed_fields
from penstock.worker.requests.request import PendingRequest
from penstock.worker.requests.sequence_block import SequenceBlock
from penstock.worker.requests.sequence_work import ReadFields
from penstock.worker.requests.validation import first_error

_PAUSE_STEPS = 1024  # unfolded, a few milliseconds; then the event loop has a turn
_COLUMN_BYTES = 64  # of a reply, for each name that is emitted, beside its values
_JSON_FACTOR = 5  # a value of four bytes, alone in its list, as JSON
_OPTIONS = TaskOptions("sequence")
_TOKEN = np.zeros(1, np.int32)


class SequenceRequests:
    """Called by the stage `prepare`, on the event loop."""

    def __init__(self, info: ModelInfo, read: ReadFields, max_reply_bytes: int) -> None:
        self._info = info
        self._read = read
        self._max_reply_bytes = max_reply_bytes
        self._keys = KeySpace(info.revision, info.dtype, "sequence", None, None, None)

    async def sequences(self, request: PendingRequest) -> list[SequenceBlock]:
        """The sequences of a request, each a block. Their token ids stand for their steps, which are counted as tokens.

        Raises:
            InvalidRequest: with the sequences at fault; or without, where the reply would be too large.
        """
        found: list[SequenceBlock] = []
        errors: dict[int, PenstockError] = {}
        reply_bytes = num_steps = 0
        for index, fields in enumerate(request.message.sequences or ()):
            try:
                work = self._read(fields)
            except PenstockError as error:
                errors[index] = error
                continue
            keys, lengths = (self._keys.key(packed_fields(fields)),), (work.num_steps,)
            steps = np.broadcast_to(_TOKEN, work.num_steps)
            found.append(SequenceBlock(request, (index,), steps, lengths, None, _OPTIONS, keys, work=work))
            reply_bytes += work.reply_bytes + (_COLUMN_BYTES // 8) * len(self._info.emissions)
            num_steps += work.num_steps
            if num_steps >= _PAUSE_STEPS:
                num_steps = 0
                await asyncio.sleep(0)
        if errors:
            raise first_error(errors)
        if request.address.is_json:
            reply_bytes *= _JSON_FACTOR
        if reply_bytes + _COLUMN_BYTES * len(self._info.emissions) > self._max_reply_bytes:
            raise InvalidRequest(
                f"What the cells may emit would exceed {self._max_reply_bytes:,} bytes; send fewer sequences a record, "
                "or shorter ones."
            )
        return found
