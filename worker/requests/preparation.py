"""The prepare stage: from valid requests to sequences of token ids with their cache keys, and rejections."""

import asyncio
import traceback
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, islice
from typing import Any, NamedTuple

import numpy as np
import structlog

from penstock.cache import KeySpace
from penstock.engine.types import ENTAIL, Int32Array, ModelInfo, TaskOptions
from penstock.producer.errors import (
    BackendError,
    BadTokenId,
    EmptyInput,
    InvalidRequest,
    PenstockError,
    TooLong,
    UnsupportedTask,
)
from penstock.producer.languages import source_language
from penstock.producer.tokenization import Encoded, Tokenizer
from penstock.producer.tokenizer_files import SpecialFrame, TokenizerError
from penstock.producer.wire.messages import Request, Text, Uint32Array
from penstock.worker.requests.generation import GenerationRequests
from penstock.worker.requests.label_pairs import label_pairs, texts_of
from penstock.worker.requests.reply_bounds import ReplyBounds
from penstock.worker.requests.request import PendingRequest, Rejection
from penstock.worker.requests.sequence_block import SequenceBlock
from penstock.worker.requests.sequences import SequenceRequests
from penstock.worker.requests.validation import first_error

log = structlog.get_logger("penstock.preparation")

_MakeKey = Callable[[bytes, bytes | None], bytes]  # of token ids and token types
_Shared = tuple[TaskOptions, _MakeKey]


class _Columns(NamedTuple):
    """The sequences of a request, end to end."""

    ids: Int32Array | Uint32Array  # [T]
    lengths: Sequence[int]  # [N]
    types: Int32Array | None  # [T] token types; None: all zero

    def split(self, column: np.ndarray[Any, Any]) -> list[Any]:
        """A column's part of each sequence."""
        ends = accumulate(self.lengths)
        return [column[end - length : end] for length, end in zip(self.lengths, ends, strict=True)]


_Found = tuple[PendingRequest, _Columns | PenstockError]


class RequestPreparer:
    """Splits, tokenizes, bounds and keys the sequences of requests."""

    def __init__(
        self,
        info: ModelInfo,
        bounds: ReplyBounds,
        tokenizer: Tokenizer | None,
        generation: GenerationRequests | None = None,
        cells: SequenceRequests | None = None,
        *,
        has_cache: bool,
    ) -> None:
        """Without a `tokenizer`, requests with text are rejected. Without a cache, keys are for single flight alone.

        `generation`: of a model that generates. `cells`: of a model made of cells.
        """
        self._info = info
        self._cut_tokens = min(info.max_tokens, info.cut_tokens or info.max_tokens)
        self._bounds = bounds
        self._tokenizer = tokenizer
        self._frame = SpecialFrame() if tokenizer is None else tokenizer.frame
        self._has_cache = has_cache
        self._generation = generation
        self._cells = cells
        self._by_options: dict[
            tuple[str, str | None, bool | None, int | None, int], _Shared
        ] = {}  # validation bounds them

    async def prepare(self, requests: Iterable[PendingRequest]) -> tuple[list[SequenceBlock], list[Rejection]]:
        """The sequences of each request, or its rejection. One tokenizer call for all texts with equal options."""
        blocks: list[SequenceBlock] = []
        rejections: list[Rejection] = []
        if self._cells is not None:
            for request in requests:
                try:
                    own = await self._cells.sequences(request)
                    request.note_tokens(sum([sum(block.lengths) for block in own]))
                    blocks += own
                except PenstockError as error:
                    rejections.append(request.reject(error))
            return blocks, rejections
        found = await self._token_ids(requests)
        is_bounded = self._is_bounded(found)
        for request, columns in found:
            try:
                fitting = self._fit(request, columns, is_bounded)
                blocks += self._keyed(request, fitting)
                request.note_tokens(len(fitting.ids), self._bounds.token_bytes(request.message))
            except PenstockError as error:
                rejections.append(request.reject(error))
        return blocks, rejections

    async def _token_ids(self, requests: Iterable[PendingRequest]) -> list[_Found]:
        found: list[_Found] = []
        with_text: dict[tuple[bool, bool, str | None], list[PendingRequest]] = {}  # by truncate, spans, language
        for request in requests:
            message = request.message
            if message.tokens is not None:
                found.append((request, _Columns(message.tokens.ids, message.tokens.lens, None)))
            else:
                language = source_language(message.options.generation)
                wanted = message.options.truncate, message.task == "token_classify", language
                with_text.setdefault(wanted, []).append(request)
        for wanted, chosen in with_text.items():
            found += await self._tokenize(chosen, *wanted)
        return found

    def _is_bounded(self, found: Iterable[_Found]) -> bool:
        """Whether all ids and types are in the model's tables: one look at all of them.

        Those of texts too: a checkpoint's tokenizer may have more tokens, or more types, than its model.
        """
        whole = [columns for _, columns in found if not isinstance(columns, PenstockError)]
        return _all_below(self._info.vocab_size, [one.ids for one in whole]) and (
            self._info.num_token_types is None
            or _all_below(self._info.num_token_types, [one.types for one in whole if one.types is not None])
        )

    async def _tokenize(
        self, requests: list[PendingRequest], truncate: bool, spans: bool, language: str | None
    ) -> list[_Found]:
        """Tokenize all texts in one call. If it fails, each request gets its own, so that only the culprit fails."""
        if self._tokenizer is None:
            error = UnsupportedTask(f"{self._info.name!r} has no tokenizer here: send token ids.")
            return [(request, error) for request in requests]
        own_texts = [texts_of(request.message) for request in requests]
        texts: list[Text] = [text for own in own_texts for text in own]
        try:
            encoded = await self._tokenizer.encode_async(
                texts, truncate=truncate, max_tokens=self._cut_tokens, spans=spans, language=language
            )
        except InvalidRequest as fault:  # of texts whose role has a length of its own
            if len(requests) == 1:
                return [(requests[0], fault)]
            return [one for request in requests for one in await self._tokenize([request], truncate, spans, language)]
        except Exception as problem:
            # The error may quote a text.
            raised_at = "{0.filename}:{0.lineno}".format(traceback.extract_tb(problem.__traceback__)[-1])
            kind = type(problem).__qualname__
            log.error("tokenizer_failed", records=len(requests), texts=len(texts), kind=kind, raised_at=raised_at)
            if len(requests) == 1:
                return [(requests[0], BackendError(f"The tokenizer failed on this text. Raised: {problem!r}"[:500]))]
            return [one for request in requests for one in await self._tokenize([request], truncate, spans, language)]
        remaining = iter(encoded)
        found: list[_Found] = []
        for request, own_text in zip(requests, own_texts, strict=True):
            own = list(islice(remaining, len(own_text)))
            if request.message.options.labels is not None:
                await asyncio.sleep(0)  # the pairs of one record take up to a tenth of a second
                found.append((request, self._label_pairs(request.message, own, self._tokenizer)))
                continue
            request.note_spans(tuple([one.spans for one in own if one.spans is not None]))
            found.append((request, _end_to_end([(one.ids, one.token_type_ids) for one in own])))
        return found

    def _label_pairs(
        self, message: Request, encoded: Sequence[Encoded], tokenizer: Tokenizer
    ) -> _Columns | PenstockError:
        most_tokens = self._cut_tokens if message.options.truncate else self._info.max_tokens
        try:
            return _Columns(*label_pairs(message, encoded, tokenizer, most_tokens))
        except TokenizerError as error:
            return UnsupportedTask(f"`labels` cannot be used with the tokenizer of {self._info.name!r}. {error}")
        except PenstockError as error:
            return error

    def _fit(self, request: PendingRequest, found: _Columns | PenstockError, is_bounded: bool) -> _Columns:
        """Bound sequences to the vocabulary and the model's maximum. A cut keeps the special tokens around the text.

        `is_bounded`: no id or type of all requests is outside the model's tables.

        Raises:
            BadTokenId, EmptyInput, TooLong, InvalidRequest: with the sequences at fault.
            PenstockError: more tokens than one reply has room for, or what `_tokenize` found.
        """
        if isinstance(found, PenstockError):
            raise found
        info, lengths, message = self._info, found.lengths, request.message
        if not is_bounded:
            self._check_tables(found, message.sequences_per_row)
        if 0 in lengths:
            raise first_error({i: EmptyInput("The text holds no token.") for i, n in enumerate(lengths) if n == 0})
        longest = max(lengths)
        if longest > info.max_tokens and not message.options.truncate:
            raise _above(info.max_tokens, lengths, TooLong, f"`inputs` must have at most {info.max_tokens} tokens.")
        self._bounds.check_tokens(message, lengths, request.address.is_json)
        most = self._cut_tokens if message.options.truncate else info.max_tokens
        if longest <= most:
            return found
        cut = self._frame.cut  # for ids of clients: the tokenizer has cut texts
        ids = [cut(one, most) for one in found.split(found.ids)]
        types = [None] * len(ids) if found.types is None else [cut(one, most) for one in found.split(found.types)]
        return _end_to_end(list(zip(ids, types, strict=True)))

    def _check_tables(self, found: _Columns, sequences_per_row: int) -> None:
        info = self._info
        highest = _highest(found.split(found.ids), sequences_per_row)
        if any(value >= info.vocab_size for value in highest):
            raise _above(info.vocab_size - 1, highest, BadTokenId, f"Token ids must be below {info.vocab_size}.")
        if info.num_token_types is None or found.types is None:
            return
        highest = _highest(found.split(found.types), sequences_per_row)
        if any(value >= info.num_token_types for value in highest):
            rule = (
                f"The tokenizer of {info.name!r} gives this text a token type that the model does not have: "
                f"types must be below {info.num_token_types}."
            )
            raise _above(info.num_token_types - 1, highest, InvalidRequest, rule)

    def _keyed(self, request: PendingRequest, columns: _Columns) -> list[SequenceBlock]:
        ids, lengths, types = columns
        if self._generation is not None:
            return self._generation.sequences(request, columns.split(ids))
        options, make_key = self._shared(request.message)
        if options.prompt_tokens:
            _require_text(lengths, options.prompt_tokens)
        if types is None and len(lengths) == 1:
            keys = [make_key(ids.tobytes(), None)]
        elif types is None:
            keys = [make_key(one, None) for one in _split_bytes(ids, lengths)]
        else:
            # A sequence whose types are all zero has one key, whether others of its request have types or not.
            pairs = zip(_split_bytes(ids, lengths), _split_bytes(types, lengths), strict=True)
            keys = [make_key(one, own if any(own) else None) for one, own in pairs]
        return [SequenceBlock(request, range(len(lengths)), ids, lengths, types, options, keys)]

    def _shared(self, message: Request) -> _Shared:
        """The objects that requests with equal task and options share."""
        wanted = message.options
        task = message.task if wanted.labels is None else ENTAIL
        named = task, wanted.pooling, wanted.normalize, wanted.dimensions, self._prompt_tokens(message)
        shared = self._by_options.get(named)
        if shared is None:
            make_key = _flight_key(len(self._by_options))
            if self._has_cache:
                make_key = KeySpace(self._info.revision, self._info.dtype, *named).key
            shared = self._by_options[named] = TaskOptions(*named), make_key
        return shared

    def _prompt_tokens(self, message: Request) -> int:
        """The leading tokens of each text that pooling leaves out."""
        tokenizer = self._tokenizer
        prompt = "" if tokenizer is None else tokenizer.prompts.left_out(message)
        if tokenizer is None or not prompt:
            return 0
        return tokenizer.count_prompt(prompt, truncate=message.options.truncate, max_tokens=self._cut_tokens)


def _require_text(lengths: Sequence[int], prompt_tokens: int) -> None:
    """Raise EmptyInput for the sequences of which pooling would leave out all."""
    rule = f"Pooling leaves out the {prompt_tokens} tokens of the prompt, and the text has no others."
    at_fault = {i: EmptyInput(f"{rule} Given: {n}") for i, n in enumerate(lengths) if n <= prompt_tokens}
    if at_fault:
        raise first_error(at_fault)


def _flight_key(number: int) -> _MakeKey:
    """Makes keys of sequences with equal options, which have this number: the ids as they are, which costs no hash."""
    untyped, typed = b"%d," % number, b"%d+" % number

    def key(ids: bytes, types: bytes | None) -> bytes:
        return untyped + ids if types is None else typed + ids + types

    return key


def _end_to_end(sequences: Sequence[tuple[Int32Array | Uint32Array, Int32Array | None]]) -> _Columns:
    """Of token ids, and token types where there are some: a sequence without types is of type 0."""
    all_ids: list[Any] = [ids for ids, _ in sequences]
    types = None
    if any(one is not None for _, one in sequences):
        types = np.concatenate([np.zeros(len(ids), np.int32) if one is None else one for ids, one in sequences])
    return _Columns(np.concatenate(all_ids), [len(ids) for ids in all_ids], types)


def _split_bytes(column: Int32Array | Uint32Array, lengths: Sequence[int]) -> list[bytes]:
    """The bytes of each sequence."""
    whole, size = column.tobytes(), column.itemsize
    ends = [end * size for end in accumulate(lengths)]
    return [whole[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def _all_below(limit: int, arrays: list[Int32Array | Uint32Array] | list[Int32Array]) -> bool:
    return not arrays or int(np.concatenate(arrays).max(initial=0)) < limit


def _highest(sequences: Sequence[Int32Array | Uint32Array], sequences_per_row: int) -> list[int]:
    """The highest value of each row of the request's reply."""
    values = [int(one.max(initial=0)) for one in sequences]
    return [max(values[first : first + sequences_per_row]) for first in range(0, len(values), sequences_per_row)]


def _above(maximum: int, values: Sequence[int], kind: type[InvalidRequest], rule: str) -> PenstockError:
    """The error of a request, for the rows whose values are above the maximum."""
    return first_error({i: kind(f"{rule} Given: {value}") for i, value in enumerate(values) if value > maximum})
