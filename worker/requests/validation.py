"""From a Kafka record to an accepted request, or to the error that refuses it. Pure: no Kafka calls, no clock."""

import functools
import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from penstock.engine.types import Int32Array, ModelInfo
from penstock.producer.errors import (
    BadTokenId,
    EmptyInput,
    InvalidRequest,
    PenstockError,
    TooLong,
    UnknownModel,
    UnsupportedTask,
)
from penstock.producer.wire.codec import MAX_LABELS, decode_request
from penstock.producer.wire.headers import ReplyAddress, parse_address, parse_deadline_ms, parse_is_bulk
from penstock.producer.wire.messages import Request, Text, Tokens
from penstock.scheduler import Cause
from penstock.worker.batching.deadline_errors import refusal_error
from penstock.worker.kafka.header_names import UNREADABLE
from penstock.worker.requests.record import InFlight, KafkaRecord

_ITEM_BYTES = {"float32": 4, "float16": 2}
_SPAN_BYTES = 8
_NUMBER_BYTES = 9  # a float of msgpack
_HEAD_BYTES = 5  # of a string of msgpack
# A text of more than this for each token that the model takes is too long, and is not tokenized to be told so: a
# megabyte of text keeps a core busy for more than a second, and every other request waits behind it.
_CHARACTERS_PER_TOKEN = 32

Sequence = tuple[Int32Array, Int32Array | None]  # token ids, token types (None: all zero)


class Intake:
    """The worker's door. Everything a request can have wrong before tokenization is found here."""

    def __init__(
        self,
        info: ModelInfo,
        *,
        reply_topics: str,
        bulk_topic: str,
        slo_s: float | None,
        max_sequences: int,
        max_reply_bytes: int,
    ) -> None:
        """What comes by `bulk_topic` is of class bulk, whatever its header says.

        `slo_s` gives a deadline to online requests that bring none.
        """
        self._info = info
        self._bulk_topic = bulk_topic
        self._slo_s = slo_s
        pattern = re.compile(reply_topics)
        self._allowed = functools.lru_cache(maxsize=1024)(lambda topic: pattern.fullmatch(topic) is not None)
        self._max_sequences = max_sequences
        self._max_reply_bytes = max_reply_bytes
        label_bytes = [_HEAD_BYTES + len(label.encode()) for label in info.labels]
        self._longest_label_bytes, self._all_labels_bytes = max(label_bytes, default=0), sum(label_bytes)

    def address(self, record: KafkaRecord) -> ReplyAddress:
        """Where the record wants its answer.

        Raises:
            InvalidRequest: it names no place, or one outside the allow-list; no answer can be given.
        """
        try:
            address = parse_address(record.headers)
        except InvalidRequest:
            _check_names(record)  # the header that is missed may be the one whose name could not be read
            raise
        if not self._allowed(address.topic):
            raise InvalidRequest(f"The reply topic {address.topic[:100]!r} is outside this worker's allow-list.")
        return address

    def accept(self, record: KafkaRecord, address: ReplyAddress, now: float, unix_now: float) -> InFlight:
        """Decode and check one record; `now` is the worker's monotonic clock, `unix_now` the wall clock, in seconds.

        Raises:
            PenstockError: the typed refusal, to be answered at once.
        """
        _check_names(record)
        bulk = parse_is_bulk(record.headers) or record.topic == self._bulk_topic
        deadline = self._deadline(record, bulk, now, unix_now)
        request = decode_request(record.value)
        self._check(request)
        request = self._bounded(request)
        n = request.num_sequences
        queue_ms = max(0.0, unix_now * 1000 - record.timestamp)
        timing_ms = {"queue": round(queue_ms, 3)}
        return InFlight(record, address, request, deadline, bulk, now, [None] * n, n, timing_ms=timing_ms)

    def _deadline(self, record: KafkaRecord, bulk: bool, now: float, unix_now: float) -> float | None:
        """The one that the request brings, else the worker's objective for online ones, on its monotonic clock."""
        deadline_ms = parse_deadline_ms(record.headers)
        if deadline_ms is None:
            return None if bulk or self._slo_s is None else now + self._slo_s
        late_s = unix_now - deadline_ms / 1000
        if late_s > 0:
            raise refusal_error(Cause.ARRIVED_LATE, late_s)
        return now - late_s

    def _check(self, request: Request) -> None:
        info, n = self._info, request.num_sequences
        if request.model != info.name:
            raise UnknownModel(f"This topic's workers serve {info.name!r}. Given: {request.model[:100]!r}")
        if request.task not in info.tasks:
            raise UnsupportedTask(f"{info.name!r} can {' or '.join(sorted(info.tasks))}. Asked for: {request.task!r}")
        if n > self._max_sequences:
            raise InvalidRequest(f"A record holds at most {self._max_sequences} sequences. Given: {n}")
        reply_bytes = self._row_bytes(request) * n
        if reply_bytes > self._max_reply_bytes:
            at_most = self._max_reply_bytes // self._row_bytes(request)
            raise InvalidRequest(
                f"The reply would exceed {self._max_reply_bytes:,} bytes; send at most {at_most} sequences."
            )

    def _bounded(self, request: Request) -> Request:
        """The request with texts that can be tokenized in good time: cut, or refused, like too many tokens."""
        at_most = self._info.max_tokens * _CHARACTERS_PER_TOKEN
        sizes = [len(text) if isinstance(text, str) else max(map(len, text)) for text in request.text or ()]
        if max(sizes, default=0) <= at_most:
            return request
        if not request.options.truncate:
            raise _first(
                {
                    index: TooLong(
                        f"`text` must have at most {at_most:,} characters, {_CHARACTERS_PER_TOKEN} for each of the "
                        f"model's {self._info.max_tokens} tokens. Given: {size:,}"
                    )
                    for index, size in enumerate(sizes)
                    if size > at_most
                }
            )
        return replace(request, text=tuple([_cut_text(text, at_most) for text in request.text or ()]))

    def _row_bytes(self, request: Request) -> int:
        match request.task:
            case "embed":
                return self._info.dim * _ITEM_BYTES[request.options.dtype]
            case "classify":
                return self._num_kept(request) * (_NUMBER_BYTES + self._longest_label_bytes)
            case "rerank":
                return _NUMBER_BYTES
            case "token_classify":
                return 4  # its length; the tokens are counted in `fit`, where they are known
            case task:
                raise RuntimeError(f"The size of a row is not known for {task!r}. This is a bug.")

    def _check_tokens(self, request: Request, num_tokens: int) -> None:
        """The bound on a token_classify record, before it is run: of its reply, and of the scores that wait for it."""
        num_labels = len(self._info.labels)
        if num_labels > MAX_LABELS:
            raise UnsupportedTask(f"{self._info.name!r} has {num_labels:,} labels; a reply can name {MAX_LABELS:,}.")
        sent = self._num_kept(request) * (2 + _ITEM_BYTES[request.options.dtype])
        sent += _SPAN_BYTES if request.text is not None else 0
        room = self._max_reply_bytes - self._all_labels_bytes - 4 * request.num_sequences
        at_most = room // max(sent, 4 * num_labels)
        if num_tokens > at_most:
            raise InvalidRequest(
                f"The scores of {num_tokens:,} tokens would exceed {self._max_reply_bytes:,} bytes; "
                f"send at most {max(0, at_most):,} tokens a record."
            )

    def _num_kept(self, request: Request) -> int:
        """Labels that are sent of each row or token."""
        num_labels = len(self._info.labels)
        return min(request.options.top_k or num_labels, num_labels)

    def sequences_from_tokens(self, request: Request, tokens: Tokens) -> list[Sequence]:
        """The sequences of a request that came as token ids.

        Raises:
            BadTokenId, TooLong: with the sequences at fault.
        """
        highest = tokens.ids.max()
        ids = tokens.ids.view(np.int32)
        sequences = [ids] if len(tokens.lens) == 1 else np.split(ids, np.cumsum(tokens.lens[:-1]))
        if highest >= self._info.vocab_size:
            raise _first(self._bad_ids(sequences))
        return self.fit(request, [(sequence, None) for sequence in sequences])

    def fit(self, request: Request, sequences: list[Sequence]) -> list[Sequence]:
        """Sequences no longer than the model's maximum: cut when the request says so.

        A cut keeps the last id, which is the end-of-sequence marker of a tokenized text.

        Raises:
            EmptyInput: with the sequences at fault, when a tokenizer made nothing of a text.
            TooLong: with the sequences at fault, when the request does not allow truncation.
            InvalidRequest: there are more tokens than may be classified in one record.
        """
        longest = self._info.max_tokens
        lengths = [len(ids) for ids, _ in sequences]
        if 0 in lengths:
            raise _first({i: EmptyInput("The text holds no token.") for i, length in enumerate(lengths) if not length})
        if max(lengths) > longest and not request.options.truncate:
            raise _first(
                {
                    index: TooLong(f"`inputs` must have at most {longest} tokens. Given: {len(ids)}")
                    for index, (ids, _) in enumerate(sequences)
                    if len(ids) > longest
                }
            )
        if request.task == "token_classify":
            self._check_tokens(request, sum([min(length, longest) for length in lengths]))
        return sequences if max(lengths) <= longest else [_cut(sequence, longest) for sequence in sequences]

    def _bad_ids(self, sequences: list[Int32Array]) -> dict[int, PenstockError]:
        size = self._info.vocab_size
        return {
            index: BadTokenId(f"Token ids must be below {size}. Given: {ids.view(np.uint32).max()}")
            for index, ids in enumerate(sequences)
            if ids.view(np.uint32).max() >= size
        }


def _check_names(record: KafkaRecord) -> None:
    for name, _ in record.headers:
        if name == UNREADABLE:
            raise InvalidRequest("The record's headers could not be read: the name of one is not UTF-8.")


def _cut_text(text: Text, at_most: int) -> Text:
    return text[:at_most] if isinstance(text, str) else (text[0][:at_most], text[1][:at_most])


def _cut(sequence: Sequence, longest: int) -> Sequence:
    ids, types = sequence
    if len(ids) <= longest:
        return sequence
    kept = np.concatenate([ids[: longest - 1], ids[-1:]])
    return kept, None if types is None else np.concatenate([types[: longest - 1], types[-1:]])


def _first(errors: Mapping[int, PenstockError]) -> PenstockError:
    """One error for the record, saying which sequences are at fault."""
    index, error = next(iter(errors.items()))
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return type(error)(f"Sequence {index}{more}: {error.message}", errors)
