"""The size of a reply, foreseen from its request, so that no result is computed that no reply can carry.

That of sparse vectors is known only once they are there.
"""

from collections.abc import Sequence

from penstock.engine.types import ModelInfo
from penstock.producer.errors import InvalidRequest, UnsupportedTask
from penstock.producer.wire.codec import MAX_LABELS
from penstock.producer.wire.messages import BIT_DTYPES, TOKEN_VECTOR_TASKS, Request
from penstock.worker.requests.request import PendingRequest, Rejection

_ITEM_BYTES = {"float32": 4, "float16": 2, "int8": 1, "uint8": 1}
_BITS = 8  # of a byte
_HEAD_BYTES = 512  # of a reply beside its rows: names of fields, the model, timing
_CLASS_BYTES = 2
_LENGTH_BYTES = 4  # of a sequence whose results have a length of their own
_SPAN_BYTES = 8
_FLOAT_BYTES = 9  # msgpack
_STRING_HEAD_BYTES = 5  # msgpack
_TOKEN_BYTES = 4  # of a generated one
_TOKEN_TEXT_BYTES = 8  # of its text: twice the mean of European languages
_GENERATION_BYTES = 20  # of a generated sequence, beside its tokens and their text


_UNFORESEEN = {"embed_sparse", *TOKEN_VECTOR_TASKS}


class ReplyBounds:
    """Rejects requests whose replies would exceed `max_reply_bytes`."""

    def __init__(self, info: ModelInfo, max_reply_bytes: int) -> None:
        self._info = info
        self._max_reply_bytes = max_reply_bytes
        self._label_bytes = _label_bytes(info.labels)
        self._all_labels_bytes = sum(self._label_bytes)

    def check_sequences(self, request: Request) -> None:
        """Called at validation. Raises InvalidRequest with the number of sequences that fits."""
        self._check(request, self._sequence_bytes(request))

    def check_generation(self, request: Request, max_new_tokens: int) -> None:
        """As `check_sequences`, for sequences that are answered with so many tokens each at most."""
        token_bytes = _TOKEN_BYTES + (_TOKEN_TEXT_BYTES if request.text is not None else 0)
        self._check(request, _GENERATION_BYTES + max_new_tokens * token_bytes)

    def _check(self, request: Request, bytes_each: int) -> None:
        if bytes_each * request.num_rows > self._max_reply_bytes:
            raise InvalidRequest(
                f"The reply would exceed {self._max_reply_bytes:,} bytes; "
                f"send at most {self._max_reply_bytes // bytes_each} sequences."
            )

    def refused(self, requests: Sequence[PendingRequest], values: Sequence[bytes]) -> list[Rejection]:
        """Called with complete requests and their replies. Rejects those whose size was not foreseen, and is too large.

        A vector for each token may be more than was foreseen where a query is expanded.
        """
        if max(map(len, values), default=0) <= self._max_reply_bytes:  # as nearly always
            return []
        return [
            request.reject(
                InvalidRequest(f"The reply would exceed {self._max_reply_bytes:,} bytes: it has {len(value):,}.")
            )
            for request, value in zip(requests, values, strict=True)
            if len(value) > self._max_reply_bytes + _HEAD_BYTES and request.message.task in _UNFORESEEN
        ]

    def token_bytes(self, request: Request) -> int:
        """Bytes that the engine's results hold for each token of a request, where they grow with its tokens."""
        return _ITEM_BYTES["float32"] * self._info.token_dim if request.task in TOKEN_VECTOR_TASKS else 0

    def check_tokens(self, request: Request, lengths: Sequence[int]) -> None:
        """Called with the tokens of each sequence, before they are cut. Bounds the replies that grow with them.

        Raises:
            InvalidRequest: with the number of tokens that fits.
            UnsupportedTask: the model has more labels than a reply can name.
        """
        if request.task != "token_classify" and request.task not in TOKEN_VECTOR_TASKS:
            return
        num_tokens = sum([min(length, self._info.max_tokens) for length in lengths])
        if request.task == "token_classify":
            self._check_labels(request, num_tokens)
        else:
            room = self._max_reply_bytes - self._sequence_bytes(request) * request.num_rows
            self._check_room("vectors", num_tokens, room // (_ITEM_BYTES[request.options.dtype] * self._info.token_dim))

    def _check_labels(self, request: Request, num_tokens: int) -> None:
        """Bounds the reply, and the scores of all labels in memory."""
        num_labels = len(self._info.labels)
        if num_labels > MAX_LABELS:
            raise UnsupportedTask(f"{self._info.name!r} has {num_labels:,} labels; a reply can name {MAX_LABELS:,}.")
        sent = self._num_labels_sent(request) * (_CLASS_BYTES + _ITEM_BYTES[request.options.dtype])
        sent += _SPAN_BYTES if request.text is not None else 0
        room = self._max_reply_bytes - self._all_labels_bytes - _LENGTH_BYTES * request.num_sequences
        self._check_room("scores", num_tokens, room // max(sent, _ITEM_BYTES["float32"] * num_labels))

    def _check_room(self, what: str, num_tokens: int, max_tokens: int) -> None:
        if num_tokens > max_tokens:
            raise InvalidRequest(
                f"The {what} of {num_tokens:,} tokens would exceed {self._max_reply_bytes:,} bytes; "
                f"send at most {max(0, max_tokens):,} tokens a record."
            )

    def _sequence_bytes(self, request: Request) -> int:
        match request.task:
            case "embed":
                length, dtype = request.options.dimensions or self._info.dim, request.options.dtype
                return -(-length // _BITS) if dtype in BIT_DTYPES else length * _ITEM_BYTES[dtype]
            case "embed_all":
                return self._info.dim * _ITEM_BYTES[request.options.dtype] + 2 * _LENGTH_BYTES
            case "embed_sparse":
                return _LENGTH_BYTES  # `refused` bounds the rest
            case "classify":
                labels, num_sent = request.options.labels, self._num_labels_sent(request)
                label_bytes = self._label_bytes if labels is None else _label_bytes(labels)
                return num_sent * _FLOAT_BYTES + sum(label_bytes[:num_sent])
            case "rerank":
                return _FLOAT_BYTES
            case "sequence":
                return 0  # `SequenceRequests` bounds it, which knows the graphs
            case "token_classify" | "embed_tokens":
                return _LENGTH_BYTES  # `check_tokens` bounds the rest
            case task:
                raise RuntimeError(f"The size of a row is not known for {task!r}. This is a bug.")

    def _num_labels_sent(self, request: Request) -> int:
        """Labels in the reply for each sequence or token."""
        num_labels = len(self._info.labels if request.options.labels is None else request.options.labels)
        return min(request.options.most_labels or num_labels, num_labels)


def _label_bytes(labels: Sequence[str]) -> list[int]:
    """Of each label in a reply, the longest first."""
    return sorted([_STRING_HEAD_BYTES + len(label.encode()) for label in labels], reverse=True)
