"""From Kafka records to rows: decode, check, tokenize, key. What cannot be accepted is refused on the way."""

import functools
from collections.abc import Callable, Sequence

import structlog

from penstock.cache import KeySpace
from penstock.engine.types import ModelInfo
from penstock.producer.errors import BackendError, InvalidRequest, PenstockError, UnsupportedTask
from penstock.producer.tokenization import Encoded, Tokenizer
from penstock.producer.wire.headers import ReplyAddress
from penstock.producer.wire.messages import Text
from penstock.worker.requests.record import InFlight, KafkaRecord, Row, rows_of
from penstock.worker.requests.validation import Intake

log = structlog.get_logger("penstock.admission")

Refuse = Callable[[KafkaRecord, ReplyAddress | None, PenstockError], None]


class Admission:
    """Turns polled records into rows ready for the cache and the scheduler."""

    def __init__(self, intake: Intake, info: ModelInfo, tokenizer: Tokenizer | None, refuse: Refuse) -> None:
        """`refuse` is called at once for each record that is at fault."""
        self._intake = intake
        self._info = info
        self._tokenizer = tokenizer
        self._refuse = refuse

    async def rows(self, records: Sequence[KafkaRecord], now: float, unix_now: float) -> list[Row]:
        """Rows of every record that can be served, keyed. One tokenizer call for all texts that want the same of it."""
        rows: list[Row] = []
        texts: dict[tuple[bool, bool], list[InFlight]] = {}  # by what the tokenizer is to do
        for record in records:
            inflight = self._accept(record, now, unix_now)
            if inflight is None:
                continue
            if inflight.request.tokens is None:
                texts.setdefault(_wants(inflight), []).append(inflight)
            else:
                rows += self._rows_from_tokens(inflight)
        for (truncate, spans), chosen in texts.items():
            rows += await self._rows_from_texts(chosen, truncate, spans)
        return rows

    def _accept(self, record: KafkaRecord, now: float, unix_now: float) -> InFlight | None:
        address: ReplyAddress | None = None
        try:
            address = self._intake.address(record)
            return self._intake.accept(record, address, now, unix_now)
        except PenstockError as error:
            self._refuse(record, address, error)
            return None

    def _rows_from_tokens(self, inflight: InFlight) -> list[Row]:
        request = inflight.request
        if request.tokens is None:
            raise RuntimeError("A text request was taken for one of token ids. This is a bug.")
        try:
            return self._keyed(rows_of(inflight, self._intake.sequences_from_tokens(request, request.tokens)))
        except InvalidRequest as error:
            self._refuse(inflight.record, inflight.address, error)
            return []

    async def _rows_from_texts(self, inflights: list[InFlight], truncate: bool, spans: bool) -> list[Row]:
        """One tokenizer call for all; should it fail, one a record, so that only the culprit is refused."""
        if self._tokenizer is None:
            error = UnsupportedTask(f"{self._info.name!r} has no tokenizer here: send token ids.")
            for inflight in inflights:
                self._refuse(inflight.record, inflight.address, error)
            return []
        texts: list[Text] = [text for inflight in inflights for text in inflight.request.text or ()]
        try:
            encoded = await self._tokenizer.encode_async(
                texts, truncate=truncate, max_tokens=self._info.max_tokens, spans=spans
            )
        except Exception as problem:
            log.exception("tokenizer_failed", records=len(inflights), texts=len(texts))
            if len(inflights) == 1:
                failure = BackendError(f"The tokenizer failed on this text: {problem!r}"[:500])
                self._refuse(inflights[0].record, inflights[0].address, failure)
                return []
            return [row for inflight in inflights for row in await self._rows_from_texts([inflight], truncate, spans)]
        return self._rows_from_encoded(inflights, encoded)

    def _rows_from_encoded(self, inflights: list[InFlight], encoded: Sequence[Encoded]) -> list[Row]:
        rows: list[Row] = []
        start = 0
        for inflight in inflights:
            stop = start + inflight.request.num_sequences
            mine = [(sequence.ids, sequence.token_type_ids) for sequence in encoded[start:stop]]
            inflight.spans = [sequence.spans for sequence in encoded[start:stop] if sequence.spans is not None]
            start = stop
            try:
                rows += self._keyed(rows_of(inflight, self._intake.fit(inflight.request, mine)))
            except InvalidRequest as error:
                self._refuse(inflight.record, inflight.address, error)
        return rows

    def _keyed(self, rows: list[Row]) -> list[Row]:
        options = rows[0].options
        space = _key_space(self._info.revision, self._info.dtype, options.task, options.pooling, options.normalize)
        for row in rows:
            types = row.token_type_ids
            row.key = space.key(row.token_ids.tobytes(), None if types is None else types.tobytes())
        return rows


def _wants(inflight: InFlight) -> tuple[bool, bool]:
    """Whether the tokenizer is to cut what is too long, and to say where tokens stand."""
    return inflight.request.options.truncate, inflight.request.task == "token_classify"


@functools.lru_cache(maxsize=256)
def _key_space(revision: str, dtype: str, task: str, pooling: str | None, normalize: bool | None) -> KeySpace:
    return KeySpace(revision, dtype, task, pooling, normalize)
