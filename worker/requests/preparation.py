"""The prepare stage: from valid requests to sequences of token ids with their cache keys, and rejections."""

import functools
from collections.abc import Iterable, Sequence

import numpy as np
import structlog

from penstock.cache import KeySpace
from penstock.engine.types import Int32Array, ModelInfo, TaskOptions
from penstock.producer.errors import BackendError, BadTokenId, EmptyInput, InvalidRequest, TooLong, UnsupportedTask
from penstock.producer.tokenization import Encoded, Tokenizer
from penstock.producer.wire.messages import Text, Tokens
from penstock.worker.requests.reply_bounds import ReplyBounds
from penstock.worker.requests.request import PendingRequest, PendingSequence, Rejection
from penstock.worker.requests.validation import first_error

log = structlog.get_logger("penstock.preparation")

_Ids = tuple[Int32Array, Int32Array | None]  # token ids; token types, None: all zero
_Prepared = tuple[list[PendingSequence], list[Rejection]]


class RequestPreparer:
    """Splits, tokenizes, bounds and keys the sequences of requests."""

    def __init__(self, info: ModelInfo, bounds: ReplyBounds, tokenizer: Tokenizer | None) -> None:
        """Without a `tokenizer`, requests with text are rejected."""
        self._info = info
        self._bounds = bounds
        self._tokenizer = tokenizer

    async def prepare(self, requests: Iterable[PendingRequest]) -> tuple[list[PendingSequence], list[Rejection]]:
        """The sequences of each request, or its rejection. One tokenizer call for all texts with equal options."""
        sequences: list[PendingSequence] = []
        rejections: list[Rejection] = []
        texts: dict[tuple[bool, bool], list[PendingRequest]] = {}  # by truncate, spans
        for request in requests:
            tokens = request.message.tokens
            if tokens is None:
                wanted = request.message.options.truncate, request.message.task == "token_classify"
                texts.setdefault(wanted, []).append(request)
                continue
            try:
                sequences += self._fit(request, self._split(tokens))
            except InvalidRequest as error:
                rejections.append(Rejection(request.record, request.address, error))
        for (truncate, spans), chosen in texts.items():
            prepared, rejected = await self._tokenize(chosen, truncate, spans)
            sequences += prepared
            rejections += rejected
        return sequences, rejections

    def _split(self, tokens: Tokens) -> list[_Ids]:
        """The sequences of token ids of a request. Raises BadTokenId."""
        ids = tokens.ids.view(np.int32)
        sequences = [ids] if len(tokens.lens) == 1 else np.split(ids, np.cumsum(tokens.lens[:-1]))
        size = self._info.vocab_size
        if tokens.ids.max() >= size:
            highest = [int(sequence.view(np.uint32).max()) for sequence in sequences]
            message = f"Token ids must be below {size}. Given: "
            raise first_error({i: BadTokenId(f"{message}{high}") for i, high in enumerate(highest) if high >= size})
        return [(sequence, None) for sequence in sequences]

    async def _tokenize(self, requests: list[PendingRequest], truncate: bool, spans: bool) -> _Prepared:
        """Tokenize all texts in one call. If it fails, each request gets its own, so that only the culprit fails."""
        if self._tokenizer is None:
            error = UnsupportedTask(f"{self._info.name!r} has no tokenizer here: send token ids.")
            return [], [Rejection(request.record, request.address, error) for request in requests]
        texts: list[Text] = [text for request in requests for text in request.message.text or ()]
        try:
            encoded = await self._tokenizer.encode_async(
                texts, truncate=truncate, max_tokens=self._info.max_tokens, spans=spans
            )
        except Exception as problem:
            log.exception("tokenizer_failed", records=len(requests), texts=len(texts))
            if len(requests) == 1:
                failure = BackendError(f"The tokenizer failed on this text: {problem!r}"[:500])
                return [], [Rejection(requests[0].record, requests[0].address, failure)]
            parts = [await self._tokenize([request], truncate, spans) for request in requests]
            return [one for part, _ in parts for one in part], [one for _, part in parts for one in part]
        return self._collect(requests, encoded)

    def _collect(self, requests: list[PendingRequest], encoded: Sequence[Encoded]) -> _Prepared:
        sequences: list[PendingSequence] = []
        rejections: list[Rejection] = []
        start = 0
        for request in requests:
            own = encoded[start : start + request.message.num_sequences]
            start += len(own)
            request.spans = [sequence.spans for sequence in own if sequence.spans is not None]
            try:
                sequences += self._fit(request, [(sequence.ids, sequence.token_type_ids) for sequence in own])
            except InvalidRequest as error:
                rejections.append(Rejection(request.record, request.address, error))
        return sequences, rejections

    def _fit(self, request: PendingRequest, sequences: list[_Ids]) -> list[PendingSequence]:
        """Bound sequences to the model's maximum: cut them if the request allows it. A cut keeps the last id, which
        ends the sequence of a tokenized text.

        Raises:
            EmptyInput, TooLong: with the sequences at fault.
            InvalidRequest: more tokens than can be classified in one record.
        """
        message, max_tokens = request.message, self._info.max_tokens
        lengths = [len(ids) for ids, _ in sequences]
        longest = max(lengths)
        if 0 in lengths:
            raise first_error({i: EmptyInput("The text holds no token.") for i, n in enumerate(lengths) if n == 0})
        if longest > max_tokens and not message.options.truncate:
            limit = f"`inputs` must have at most {max_tokens} tokens. Given: "
            raise first_error({i: TooLong(f"{limit}{n}") for i, n in enumerate(lengths) if n > max_tokens})
        if message.task == "token_classify":
            self._bounds.check_tokens(message, sum([min(length, max_tokens) for length in lengths]))
        if longest > max_tokens:
            sequences = [_cut(sequence, max_tokens) for sequence in sequences]
        return self._keyed(request, sequences)

    def _keyed(self, request: PendingRequest, sequences: list[_Ids]) -> list[PendingSequence]:
        info, wanted = self._info, request.message.options
        options, keys = _options_and_keys(
            info.revision, info.dtype, request.message.task, wanted.pooling, wanted.normalize
        )
        return [
            PendingSequence(
                request, i, ids, types, options, keys.key(ids.tobytes(), None if types is None else types.tobytes())
            )
            for i, (ids, types) in enumerate(sequences)
        ]


def _cut(sequence: _Ids, max_tokens: int) -> _Ids:
    ids, types = sequence
    if len(ids) <= max_tokens:
        return sequence
    kept = np.concatenate([ids[: max_tokens - 1], ids[-1:]])
    return kept, None if types is None else np.concatenate([types[: max_tokens - 1], types[-1:]])


@functools.lru_cache(maxsize=256)
def _options_and_keys(
    revision: str, dtype: str, task: str, pooling: str | None, normalize: bool | None
) -> tuple[TaskOptions, KeySpace]:
    """What all requests with equal options share."""
    return TaskOptions(task, pooling, normalize), KeySpace(revision, dtype, task, pooling, normalize)
