"""The validate stage: from Kafka records to valid requests and rejections. Pure: no Kafka calls, no clock."""

import contextlib
import functools
import re
from collections.abc import Iterable, Mapping, Sequence

from penstock.engine.types import ENTAIL, ModelInfo
from penstock.producer.aiokafka_internals.lenient_records import UNREADABLE
from penstock.producer.aiokafka_internals.record_batches import UNREADABLE_BATCH
from penstock.producer.errors import (
    BackendError,
    Cancelled,
    InvalidRequest,
    PenstockError,
    TooLong,
    UnknownModel,
    UnsupportedTask,
)
from penstock.producer.prompts import Prompts
from penstock.producer.wire.codec import decode_request
from penstock.producer.wire.headers import CANCEL, ReplyAddress, parse_address, parse_deadline_ms, parse_is_bulk
from penstock.producer.wire.json_codec import Defaults, decode_json_request, is_json
from penstock.producer.wire.messages import INT8_DTYPES, Options, Request, Text
from penstock.scheduler import Cause
from penstock.worker.requests.deadline_errors import deadline_error
from penstock.worker.requests.generation import GenerationRequests
from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.reply_bounds import ReplyBounds
from penstock.worker.requests.request import PendingRequest, Rejection, StageTimes

# Of one text, in UTF-8. How many tokens a text has only the tokenizer knows, which takes a core a second for so many.
MAX_TEXT_BYTES = 1 << 20
_BYTES_PER_CHARACTER = 4  # at most
_SHOWN_LABELS = 8
_CANCELLATION = Cancelled("This record takes a request back.")  # not raised: its traceback would grow


class RequestValidator:
    """Finds everything that can be wrong with a request before its text is tokenized."""

    def __init__(
        self,
        info: ModelInfo,
        bounds: ReplyBounds,
        prompts: Prompts,
        *,
        reply_topics: str,
        slo_s: float | None,
        max_sequences: int,
        any_dimensions: bool = False,
        generation: GenerationRequests | None = None,
    ) -> None:
        """`reply_topics` is the allow-list, a regular expression. `slo_s` gives online requests a default deadline.

        `any_dimensions`: whether vectors may be cut to lengths that the checkpoint does not state. `generation`: of a
        model that generates.
        """
        self._info = info
        self._bounds = bounds
        self._prompts = prompts
        self._slo_s = slo_s
        pattern = re.compile(reply_topics)
        self._is_allowed = functools.lru_cache(maxsize=1024)(lambda topic: pattern.fullmatch(topic) is not None)
        self._max_sequences = max_sequences
        self._any_dimensions = any_dimensions
        self._generation = generation
        self._defaults = Defaults(info.name, info.natural_task)

    def validate(
        self, records: Iterable[PendingRecord], now: float, unix_now: float
    ) -> tuple[list[PendingRequest], list[Rejection]]:
        """Decode and check records: each becomes a request or a rejection, in their order.

        `now` is the worker's monotonic clock and `unix_now` the wall clock, both in seconds. The value of a record
        whose deadline has passed is not decoded: such a record costs less than any other. A cancellation is rejected
        with `Cancelled`, at the address of the request that it takes back.
        """
        times = StageTimes(now, unix_now * 1e3)
        requests: list[PendingRequest] = []
        rejections: list[Rejection] = []
        for record in records:
            headers = dict(record.original.headers)
            address: ReplyAddress | None = None
            try:
                address = self._address(headers, record)
                check_names(headers)
                if CANCEL in headers:
                    rejections.append(Rejection(record, address, _CANCELLATION))
                    continue
                bulk = parse_is_bulk(headers) or record.from_bulk_topic
                deadline = self._deadline(headers, bulk, times)
                if deadline is not None and deadline < now:
                    rejections.append(Rejection(record, address, deadline_error(Cause.ARRIVED_LATE, now - deadline)))
                    continue
                if record.is_poison:
                    raise BackendError(f"The record ended {record.num_attempts} workers, and is not run again.")
                message = self._message(record.original.value, address.is_json)
                requests.append(PendingRequest(record, address, message, deadline, bulk, times))
            except PenstockError as error:
                rejections.append(Rejection(record, address, error))
        return requests, rejections

    def reject_late(
        self, records: Iterable[PendingRecord], now: float, unix_now: float, wait_s: float
    ) -> list[Rejection]:
        """Reject records whose deadlines will have passed in `wait_s` seconds, by their headers alone."""
        times = StageTimes(now, unix_now * 1e3)
        rejections: list[Rejection] = []
        for record in records:
            headers = dict(record.original.headers)
            with contextlib.suppress(PenstockError):
                address = self._address(headers, record)
                deadline = self._deadline(headers, parse_is_bulk(headers), times)
                if deadline is not None and (late_s := now + wait_s - deadline) > 0:
                    rejections.append(Rejection(record, address, deadline_error(Cause.OVERLOADED, late_s)))
        return rejections

    def _address(self, headers: Mapping[str, bytes], record: PendingRecord) -> ReplyAddress:
        """The reply address. Raises InvalidRequest when there is none, or one outside the allow-list."""
        try:
            address = parse_address(headers)
        except InvalidRequest:
            check_names(headers)  # the missing header may be the one with the unreadable name
            raise
        if not self._is_allowed(address.topic):
            raise InvalidRequest(f"The reply topic is outside this worker's allow-list. Given: {address.topic[:100]!r}")
        address.is_json = is_json(record.original.value)
        return address

    def _deadline(self, headers: Mapping[str, bytes], bulk: bool, times: StageTimes) -> float | None:
        """The request's own deadline, else the worker's objective for online requests, in monotonic seconds."""
        deadline_ms = parse_deadline_ms(headers)
        if deadline_ms is None:
            return None if bulk or self._slo_s is None else times.arrived + self._slo_s
        return times.arrived + (deadline_ms - times.arrived_unix_ms) / 1e3

    def _message(self, value: bytes | None, is_json: bool) -> Request:
        """The request in a record's value. Raises PenstockError if this worker cannot answer it."""
        message = decode_json_request(value, self._defaults) if value and is_json else decode_request(value)
        return self.checked(message, is_json)

    def checked(self, message: Request, is_json: bool = False) -> Request:
        """A request, with its prompt. Raises PenstockError if this worker cannot answer it, in JSON or msgpack."""
        self._check(message, is_json)
        prompted = self._prompts.apply(message)
        if prompted.text is not None:
            _require_bounded(prompted.text)
        return prompted

    def _check(self, request: Request, is_json: bool) -> None:
        info, n = self._info, request.num_sequences
        if request.model != info.name:
            raise UnknownModel(f"This topic's workers serve {info.name!r}. Given: {request.model[:100]!r}")
        if request.task not in info.tasks:
            tasks = " or ".join(info.request_tasks)
            raise UnsupportedTask(f"{info.name!r} can {tasks}. Asked for: {request.task!r}")
        if request.options.labels is not None:
            _require_inference(info)
        if n > self._max_sequences:
            pairs = "" if request.options.labels is None else ", one for each text and label"
            raise InvalidRequest(f"A record holds at most {self._max_sequences} sequences{pairs}. Given: {n}")
        if request.options.dimensions is not None:
            self._check_dimensions(request.options.dimensions)
        if request.options.dtype in INT8_DTYPES:
            self._check_int8(request.options)
        if self._generation is None:
            self._bounds.check_sequences(request, is_json)
        else:
            self._bounds.check_generation(request, self._generation.options(request).max_new_tokens, is_json)

    def _check_int8(self, options: Options) -> None:
        if self._info.int8_ranges is None:
            raise UnsupportedTask(
                f"`opts.dtype` {options.dtype!r} needs the ranges of the model's vectors, which are the worker's "
                "setting int8_ranges."
            )
        if options.dimensions not in (None, self._info.dim):
            raise UnsupportedTask(
                f"`opts.dtype` {options.dtype!r} is for vectors of {self._info.dim} values: the worker's ranges are of "
                f"these. Given: `opts.dimensions` {options.dimensions}"
            )

    def _check_dimensions(self, given: int) -> None:
        info = self._info
        if given in info.dimensions or (self._any_dimensions and given <= info.dim):
            return
        lengths = ", ".join(map(str, info.dimensions)) or (
            "left out: this checkpoint states no lengths that its vectors may be cut to, and the worker's setting "
            "any_dimensions is off"
        )
        raise UnsupportedTask(
            f"`opts.dimensions` must be {f'at most {info.dim}' if self._any_dimensions else lengths}. Given: {given}"
        )


def _require_inference(info: ModelInfo) -> None:
    """Raise UnsupportedTask unless the model can tell whether a label's hypothesis follows from a text."""
    if ENTAIL in info.tasks:
        return
    own = ", ".join(info.labels[:_SHOWN_LABELS]) + (", …" if len(info.labels) > _SHOWN_LABELS else "")
    raise UnsupportedTask(
        f"`labels` need a classifier of natural language inference: of its classes, one must have a name that begins "
        f"with 'entail' in id2label of config.json, and in label2id where there is one. {info.name!r} has: {own}"
    )


def first_error(errors: Mapping[int, PenstockError]) -> PenstockError:
    """The error of a record, from those of its sequences, which it names."""
    index, error = next(iter(errors.items()))
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return type(error)(f"Sequence {index}{more}: {error.message}", errors)


def check_names(headers: Mapping[str, bytes]) -> None:
    """Raise InvalidRequest for a record whose headers, or whose batch, could not be read."""
    if (why := headers.get(UNREADABLE_BATCH)) is not None:
        raise InvalidRequest(f"The record stands for a batch. Raised: {why.decode(errors='replace')}")
    if UNREADABLE in headers:
        raise InvalidRequest("The record's headers could not be read: the name of one is not UTF-8.")


def _require_bounded(texts: Sequence[Text]) -> None:
    """Raise TooLong for texts that would take too long to tokenize. A cut would change the tokens that remain."""
    longest = max([len(text) if isinstance(text, str) else max(map(len, text)) for text in texts], default=0)
    if longest * _BYTES_PER_CHARACTER <= MAX_TEXT_BYTES:
        return
    sizes = {
        index: max(map(_num_bytes, (text,) if isinstance(text, str) else text)) for index, text in enumerate(texts)
    }
    rule = f"A text must have at most {MAX_TEXT_BYTES:,} bytes of UTF-8."
    errors = {i: TooLong(f"{rule} Given: {size:,}") for i, size in sizes.items() if size > MAX_TEXT_BYTES}
    if errors:
        raise first_error(errors)


def _num_bytes(text: str) -> int:
    """The bytes of a text; 0 for one that is too short to matter."""
    return len(text.encode()) if len(text) * _BYTES_PER_CHARACTER > MAX_TEXT_BYTES else 0
