"""The size of a reply, foreseen from its request, so that no result is computed that no reply can carry."""

from collections.abc import Sequence

from penstock.engine.types import ModelInfo
from penstock.producer.errors import InvalidRequest, UnsupportedTask
from penstock.producer.wire.codec import MAX_LABELS
from penstock.producer.wire.messages import BIT_DTYPES, Request

_ITEM_BYTES = {"float32": 4, "float16": 2}
_BITS = 8  # of a byte
_CLASS_BYTES = 2
_LENGTH_BYTES = 4  # of a sequence of token_classify
_SPAN_BYTES = 8
_FLOAT_BYTES = 9  # msgpack
_STRING_HEAD_BYTES = 5  # msgpack
_TOKEN_BYTES = 4  # of a generated one
_TOKEN_TEXT_BYTES = 8  # of its text: twice the mean of European languages
_GENERATION_BYTES = 20  # of a generated sequence, beside its tokens and their text


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

    def check_tokens(self, request: Request, num_tokens: int) -> None:
        """Called for token_classify once tokens are known. Bounds the reply, and the scores of all labels in memory.

        Raises:
            InvalidRequest: with the number of tokens that fits.
            UnsupportedTask: the model has more labels than a reply can name.
        """
        num_labels = len(self._info.labels)
        if num_labels > MAX_LABELS:
            raise UnsupportedTask(f"{self._info.name!r} has {num_labels:,} labels; a reply can name {MAX_LABELS:,}.")
        sent = self._num_labels_sent(request) * (_CLASS_BYTES + _ITEM_BYTES[request.options.dtype])
        sent += _SPAN_BYTES if request.text is not None else 0
        room = self._max_reply_bytes - self._all_labels_bytes - _LENGTH_BYTES * request.num_sequences
        max_tokens = room // max(sent, _ITEM_BYTES["float32"] * num_labels)
        if num_tokens > max_tokens:
            raise InvalidRequest(
                f"The scores of {num_tokens:,} tokens would exceed {self._max_reply_bytes:,} bytes; "
                f"send at most {max(0, max_tokens):,} tokens a record."
            )

    def _sequence_bytes(self, request: Request) -> int:
        match request.task:
            case "embed":
                length, dtype = request.options.dimensions or self._info.dim, request.options.dtype
                return -(-length // _BITS) if dtype in BIT_DTYPES else length * _ITEM_BYTES[dtype]
            case "classify":
                labels, num_sent = request.options.labels, self._num_labels_sent(request)
                label_bytes = self._label_bytes if labels is None else _label_bytes(labels)
                return num_sent * _FLOAT_BYTES + sum(label_bytes[:num_sent])
            case "rerank":
                return _FLOAT_BYTES
            case "sequence":
                return 0  # `SequenceRequests` bounds it, which knows the graphs
            case "token_classify":
                return _LENGTH_BYTES  # `check_tokens` bounds the rest
            case task:
                raise RuntimeError(f"The size of a row is not known for {task!r}. This is a bug.")

    def _num_labels_sent(self, request: Request) -> int:
        """Labels in the reply for each sequence or token."""
        num_labels = len(self._info.labels if request.options.labels is None else request.options.labels)
        return min(request.options.top_k or num_labels, num_labels)


def _label_bytes(labels: Sequence[str]) -> list[int]:
    """Of each label in a reply, the longest first."""
    return sorted([_STRING_HEAD_BYTES + len(label.encode()) for label in labels], reverse=True)
