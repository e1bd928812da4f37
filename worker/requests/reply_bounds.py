"""The size of a reply, foreseen from its request, so that no result is computed that no reply can carry.

That of sparse vectors is known only once they are there.
"""

from collections.abc import Sequence

from penstock.engine.types import ModelInfo
from penstock.producer.errors import InvalidRequest, UnsupportedTask
from penstock.producer.wire.codec import MAX_LABELS
from penstock.producer.wire.messages import TOKEN_VECTOR_TASKS, Request
from penstock.worker.requests.reply_sizes import JsonSizes, MsgpackSizes, ReplySizes
from penstock.worker.requests.request import PendingRequest, Rejection

_RESULT_BYTES = 4  # of a value in the engine's results
_HEAD_BYTES = 512  # of a reply beside its rows: names of fields, the model, timing
_UNFORESEEN = {"embed_sparse", *TOKEN_VECTOR_TASKS}


class ReplyBounds:
    """Rejects requests whose replies would exceed `max_reply_bytes`. `is_json`: the form of request and reply."""

    def __init__(self, info: ModelInfo, max_reply_bytes: int) -> None:
        self._info = info
        self._max_reply_bytes = max_reply_bytes
        self._sizes: tuple[ReplySizes, ReplySizes] = MsgpackSizes(info), JsonSizes(info)  # by `is_json`

    def check_sequences(self, request: Request, is_json: bool) -> None:
        """Called at validation. Raises InvalidRequest with the number of sequences that fits."""
        self._check(request, self._sizes[is_json].row(request))

    def check_generation(self, request: Request, max_new_tokens: int, is_json: bool) -> None:
        """As `check_sequences`, for sequences that are answered with so many tokens each at most."""
        self._check(request, self._sizes[is_json].generated(request, max_new_tokens))

    def _check(self, request: Request, bytes_each: int) -> None:
        if bytes_each * request.num_rows > self._max_reply_bytes:
            raise InvalidRequest(
                f"The reply would exceed {self._max_reply_bytes:,} bytes; "
                f"send at most {self._max_reply_bytes // bytes_each} sequences."
            )

    def refused(self, requests: Sequence[PendingRequest], values: Sequence[bytes]) -> list[Rejection]:
        """Called with complete requests and their replies. Rejects those whose size was not foreseen, and is too large.

        A vector for each token may be more than was foreseen where a query is expanded, and text more where JSON
        escapes it.
        """
        if max(map(len, values), default=0) <= self._max_reply_bytes:  # as nearly always
            return []
        return [
            request.reject(
                InvalidRequest(f"The reply would exceed {self._max_reply_bytes:,} bytes: it has {len(value):,}.")
            )
            for request, value in zip(requests, values, strict=True)
            if len(value) > self._max_reply_bytes + _HEAD_BYTES
            and (request.message.task in _UNFORESEEN or request.address.is_json)
        ]

    def token_bytes(self, request: Request) -> int:
        """Bytes that the engine's results hold for each token of a request, where they grow with its tokens."""
        return _RESULT_BYTES * self._info.token_dim if request.task in TOKEN_VECTOR_TASKS else 0

    def check_tokens(self, request: Request, lengths: Sequence[int], is_json: bool) -> None:
        """Called with the tokens of each sequence, before they are cut. Bounds the replies that grow with them.

        And the scores of all labels of all tokens, in memory.

        Raises:
            InvalidRequest: with the number of tokens that fits.
            UnsupportedTask: the model has more labels than a reply can name.
        """
        of_labels = request.task == "token_classify"
        if not of_labels and request.task not in TOKEN_VECTOR_TASKS:
            return
        num_labels = len(self._info.labels)
        if of_labels and num_labels > MAX_LABELS:
            raise UnsupportedTask(f"{self._info.name!r} has {num_labels:,} labels; a reply can name {MAX_LABELS:,}.")
        num_tokens = sum([min(length, self._info.max_tokens) for length in lengths])
        sizes = self._sizes[is_json]
        room = self._max_reply_bytes - sizes.names(request) - sizes.row(request) * request.num_rows
        bytes_each = max(sizes.token(request), _RESULT_BYTES * num_labels if of_labels else 0)
        if num_tokens > (max_tokens := room // bytes_each):
            raise InvalidRequest(
                f"The {'scores' if of_labels else 'vectors'} of {num_tokens:,} tokens would exceed "
                f"{self._max_reply_bytes:,} bytes; send at most {max(0, max_tokens):,} tokens a record."
            )
