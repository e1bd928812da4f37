"""Answers records in this process, one at a time, by the stages of a worker: validate, prepare, run, reply."""

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, nullcontext
from typing import NamedTuple

from penstock.engine import Engine, EngineLanes
from penstock.producer.errors import BackendError
from penstock.producer.prompts import Prompts
from penstock.producer.tokenization import Tokenizer
from penstock.producer.wire.headers import ReplyAddress
from penstock.worker.batching.batch import pack
from penstock.worker.kafka.kafka_record import KafkaRecord
from penstock.worker.model_loading import load_tokenizer
from penstock.worker.model_settings import ModelSettings
from penstock.worker.process import load_encoder
from penstock.worker.replies.reply import encode_replies
from penstock.worker.requests.preparation import RequestPreparer
from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.reply_bounds import ReplyBounds
from penstock.worker.requests.reply_key import reply_key
from penstock.worker.requests.request import PendingRequest, PendingSequence
from penstock.worker.requests.validation import RequestValidator
from penstock.worker.resolved_settings import batch_caps
from penstock.worker.settings import RequestSettings


class LocalReply(NamedTuple):
    """The reply to one record, as a worker would send it."""

    address: ReplyAddress
    key: bytes
    value: bytes
    task: str
    num_sequences: int


class Answerer:
    """Made by `open_answerer`."""

    def __init__(
        self,
        model: ModelSettings,
        requests: RequestSettings,
        engine: Engine,
        lanes: EngineLanes,
        tokenizer: Tokenizer | None,
    ) -> None:
        self._info = engine.info
        self._lanes = lanes
        self._caps = batch_caps(model, engine.info)
        bounds = ReplyBounds(engine.info, requests.max_reply_bytes)
        self._validator = RequestValidator(
            engine.info,
            bounds,
            Prompts() if tokenizer is None else tokenizer.prompts,
            reply_topics=requests.reply_topics,
            slo_s=None,
            max_sequences=requests.max_sequences,
        )
        self._preparer = RequestPreparer(engine.info, bounds, tokenizer, has_cache=False)

    @property
    def served_name(self) -> str:
        return self._info.name

    async def answer(self, record: KafkaRecord, *, bulk: bool) -> LocalReply:
        """Compute the reply to a record, which a worker reads from the bulk topic or not. Raises PenstockError."""
        pending = PendingRecord(record, (record.topic, record.partition), bulk)
        requests, rejections = self._validator.validate([pending], time.monotonic(), time.time())
        if not rejections:
            sequences, rejections = await self._preparer.prepare(requests)
        if rejections:
            raise rejections[0].error
        (request,) = requests
        await self._run(sequences)
        (value,) = encode_replies([request], self._info, None, time.monotonic())
        return _reply(request, value)

    async def _run(self, sequences: Sequence[PendingSequence]) -> None:
        """Compute the results of a request, and store them in it."""
        for batch in _batches(sequences, *self._caps):
            try:
                output = await self._lanes.submit(pack(batch))
            except Exception as error:
                raise BackendError(f"The engine failed on this record: {error!r}"[:500]) from error
            for sequence, result in zip(batch, output.rows, strict=True):
                sequence.settle(result)


@asynccontextmanager
async def open_answerer(model: ModelSettings, requests: RequestSettings) -> AsyncIterator[Answerer]:
    """Load the model, which blocks, and start its lane. Raises EngineError."""
    engine, tokenizer = load_encoder(model), load_tokenizer(model)
    lanes = EngineLanes(engine, 1)
    try:
        with nullcontext() if tokenizer is None else closing(tokenizer):
            yield Answerer(model, requests, engine, lanes, tokenizer)
    finally:
        await lanes.close()


def _batches(
    sequences: Sequence[PendingSequence], max_sequences: int, max_tokens: int
) -> Iterator[list[PendingSequence]]:
    """Sequences in order, in batches within the caps; one that exceeds them is alone."""
    batch: list[PendingSequence] = []
    num_tokens = 0
    for sequence in sequences:
        if batch and (len(batch) == max_sequences or num_tokens + len(sequence.token_ids) > max_tokens):
            yield batch
            batch, num_tokens = [], 0
        batch.append(sequence)
        num_tokens += len(sequence.token_ids)
    if batch:
        yield batch


def _reply(request: PendingRequest, value: bytes) -> LocalReply:
    message, address = request.message, request.address
    key = reply_key(request.record.original, address.replay_of)
    return LocalReply(address, key, value, message.task, message.num_sequences)
