"""Answers records in this process, one at a time, by the stages of a worker: validate, prepare, run, reply."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, nullcontext
from typing import NamedTuple, Protocol

import penstock.engine  # its names that need torch are looked up when they are used
from penstock.engine import Engine, EngineLanes, ModelInfo
from penstock.engine.errors import UnsupportedCheckpoint
from penstock.producer.errors import BackendError
from penstock.producer.languages import Languages
from penstock.producer.prompts import Prompts
from penstock.producer.tokenization import Tokenizer
from penstock.producer.wire.headers import ReplyAddress
from penstock.worker.batching.batch import BatchStats, pack
from penstock.worker.batching.stage import ServedModel, StageCallbacks
from penstock.worker.kafka.kafka_record import KafkaRecord
from penstock.worker.model_loading import load_tokenizer
from penstock.worker.model_settings import ModelSettings
from penstock.worker.process import load
from penstock.worker.replies.reply import encode_replies
from penstock.worker.requests.generation import GenerationRequests, ReadOptions
from penstock.worker.requests.preparation import RequestPreparer
from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.reply_bounds import ReplyBounds
from penstock.worker.requests.request import PendingRequest, Rejection
from penstock.worker.requests.sequence_block import SequenceBlock, SequenceResults
from penstock.worker.requests.validation import RequestValidator
from penstock.worker.resolved_settings import ResolvedSettings, batch_caps
from penstock.worker.settings import RequestSettings

_CLOSE_S = 2.0  # for a step that runs


class LocalReply(NamedTuple):
    """The reply to one record, as a worker would send it."""

    address: ReplyAddress
    key: bytes
    value: bytes
    task: str
    num_sequences: int


class SequenceRunner(Protocol):
    """Computes the results of the sequences of one request, and stores them in it."""

    info: ModelInfo
    read_options: ReadOptions | None  # of a model that generates

    async def run(self, sequences: Sequence[SequenceBlock]) -> None:
        """Raises PenstockError."""

    async def close(self) -> None: ...


class Answerer:
    """Made by `open_answerer`."""

    def __init__(self, requests: RequestSettings, runner: SequenceRunner, tokenizer: Tokenizer | None) -> None:
        self.info = runner.info
        self._runner = runner
        self._tokenizer = tokenizer
        bounds = self._bounds = ReplyBounds(self.info, requests.max_reply_bytes)
        read = runner.read_options
        languages = Languages() if tokenizer is None else tokenizer.languages
        generation = None if read is None else GenerationRequests(self.info, read, languages)
        self._validator = RequestValidator(
            self.info,
            bounds,
            Prompts() if tokenizer is None else tokenizer.prompts,
            reply_topics=requests.reply_topics,
            slo_s=None,
            max_sequences=requests.max_sequences,
            generation=generation,
        )
        self._preparer = RequestPreparer(self.info, bounds, tokenizer, generation, has_cache=False)

    @property
    def served_name(self) -> str:
        return self.info.name

    async def answer(self, record: KafkaRecord, topic_id: bytes, *, bulk: bool) -> LocalReply:
        """Compute the reply to a record, which a worker reads from the bulk topic or not. Raises PenstockError."""
        pending = PendingRecord(record, (record.topic, record.partition), bulk, topic_id)
        requests, rejections = self._validator.validate([pending], time.monotonic(), time.time())
        if not rejections:
            sequences, rejections = await self._preparer.prepare(requests)
        if rejections:
            raise rejections[0].error
        (request,) = requests
        await self._runner.run(sequences)
        (value,) = encode_replies([request], self.info, None, time.monotonic(), self._tokenizer)
        if rejections := self._bounds.refused([request], [value]):
            raise rejections[0].error
        return _reply(request, value)


class _Batches:
    """Implements `SequenceRunner` with a lane of an encoder."""

    read_options: ReadOptions | None = None

    def __init__(self, model: ModelSettings, engine: Engine) -> None:
        self.info = engine.info
        self._caps = batch_caps(model, engine.info)
        self._lanes = EngineLanes(engine, 1)

    async def run(self, sequences: Sequence[SequenceBlock]) -> None:
        """See `SequenceRunner`."""
        for batch in _batches(sequences, *self._caps):
            try:
                output = await self._lanes.submit(pack(batch))
            except Exception as error:
                raise BackendError(f"The engine failed on this record: {error!r}"[:500]) from error
            if output.not_finite:
                index = batch[output.not_finite[0]].indices[0]
                raise BackendError(f"The result of sequence {index} holds NaN or infinity.")
            for sequence, result in zip(batch, output.rows, strict=True):
                sequence.settle([result])

    async def close(self) -> None:
        await self._lanes.close()


class _Steps:
    """Implements `SequenceRunner` with the steps of a model that generates."""

    def __init__(self, model: ModelSettings, served: ServedModel) -> None:
        if served.read_options is None:
            raise UnsupportedCheckpoint(f"{served.info.name!r} is made of cells, which are not run here.")
        self.info = served.info
        self.read_options: ReadOptions | None = served.read_options
        self._served = served
        self._missing = 0
        self._done: asyncio.Future[None] | None = None
        caps = ResolvedSettings.model_construct(max_batch_tokens=batch_caps(model, served.info)[1])  # all that it reads
        callbacks = StageCallbacks(lambda stats: None, self._settle, self._reject, self._fail)
        self._dispatcher = served.stage(caps, callbacks).dispatcher

    async def run(self, sequences: Sequence[SequenceBlock]) -> None:
        """See `SequenceRunner`."""
        self._missing, self._done = len(sequences), asyncio.get_running_loop().create_future()
        self._dispatcher.add(sequences)
        await self._done

    async def close(self) -> None:
        self._dispatcher.close()
        await self._served.close(_CLOSE_S)

    def _settle(self, results: SequenceResults, stats: BatchStats) -> None:
        for block, rows in results:
            block.settle(rows)
            self._missing -= len(rows)
        if self._missing == 0 and self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _reject(self, rejections: Sequence[Rejection]) -> None:
        self._fail(rejections[0].error)

    def _fail(self, error: BaseException) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)


def _runner(model: ModelSettings) -> SequenceRunner:
    """Load the model, which blocks, and start what runs it. Called on the event loop. Raises EngineError."""
    loaded = load(model)
    if isinstance(loaded, Engine):
        return _Batches(model, loaded)
    if isinstance(loaded, penstock.engine.ServedCells):
        raise UnsupportedCheckpoint(f"{loaded.info.name!r} is made of cells, which are not run here.")
    from penstock.worker.stepping.generation_model import served_generation  # imports torch

    return _Steps(model, served_generation(loaded, "accept")())


@asynccontextmanager
async def open_answerer(model: ModelSettings, requests: RequestSettings) -> AsyncIterator[Answerer]:
    """Load the model, which blocks, and start what runs it. Raises EngineError."""
    runner = _runner(model)
    try:
        tokenizer = load_tokenizer(model, runner.info)
        with nullcontext() if tokenizer is None else closing(tokenizer):
            yield Answerer(requests, runner, tokenizer)
    finally:
        await runner.close()


def _batches(blocks: Sequence[SequenceBlock], max_sequences: int, max_tokens: int) -> Iterator[list[SequenceBlock]]:
    """Sequences in order, in batches within the caps; one that exceeds them is alone."""
    batch: list[SequenceBlock] = []
    num_tokens = 0
    for sequence in [block.part([place]) for block in blocks for place in range(len(block.lengths))]:
        if batch and (len(batch) == max_sequences or num_tokens + len(sequence.token_ids) > max_tokens):
            yield batch
            batch, num_tokens = [], 0
        batch.append(sequence)
        num_tokens += len(sequence.token_ids)
    if batch:
        yield batch


def _reply(request: PendingRequest, value: bytes) -> LocalReply:
    message, address = request.message, request.address
    return LocalReply(address, request.record.reply_key, value, message.task, message.num_sequences)
