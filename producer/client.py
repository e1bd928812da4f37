"""The async client: texts or token ids in; vectors, labels or scores out.

async with Client(bootstrap_servers="localhost:9092", model="all-MiniLM-L6-v2") as client:
    vectors = await client.embed(["a text", "another"])
"""

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from penstock.producer.answer_stream import answer_stream
from penstock.producer.errors import BackendError, EmptyInput, InvalidRequest, PenstockError
from penstock.producer.row_source import row_batches
from penstock.producer.settings import ClientSettings
from penstock.producer.settings_file import SettingsFileError
from penstock.producer.tokenization import Encoded, Tokenizer
from penstock.producer.transport.call_batcher import CallBatcher
from penstock.producer.transport.exchange import Attempts, Exchange
from penstock.producer.wire.generation import read_generation
from penstock.producer.wire.messages import (
    NO_OPTIONS,
    Classification,
    Generation,
    Options,
    Ranked,
    Reply,
    Request,
    Row,
    Text,
    TokenClass,
    Uint32Array,
    Vector,
    concatenate_tokens,
    join_tokens,
)
from penstock.producer.wire.options import check_task, check_timeout_s, recheck_options
from penstock.producer.wire.sequence_codec import Emitted
from penstock.producer.wire.sequences import Checked, Kind, check, check_fields
from penstock.producer.wire.topics import bulk_topic, request_topic

__all__ = ["Client", "Row"]


class Client:
    """Client of one model. Use as an async context manager, from one event loop; calls may run concurrently.

    Methods raise errors of `penstock.producer.errors`. Each call ends by its deadline (`timeout_s`, which is sent with
    it). After `close`, pending and later calls fail with `ShuttingDown`.
    """

    def __init__(
        self,
        *,
        tokenizer: str | Path | None = None,
        bulk: bool = False,
        on_reply: Callable[[Reply, int], object] = lambda reply, num_rows: None,
        **settings: Any,
    ) -> None:
        """Check the settings; `start` connects.

        Args:
            tokenizer: a checkpoint directory; the client then tokenizes texts, in threads, and not the worker.
            bulk: send to the bulk topic, whose requests use the capacity that online requests leave, and retry
                `Overloaded` until the deadline. Give such calls a `timeout_s` of hours.
            on_reply: called with each reply and its number of rows, before a call returns them.
            settings: fields of `ClientSettings` (model=…, bootstrap_servers=…); PENSTOCK_* variables give the others.

        Raises:
            InvalidRequest: settings are missing, unknown or out of bounds; the message names each.
        """
        checked = _checked(settings)
        self._settings = _on_bulk_topic(checked) if bulk else checked
        self._default_timeout_s = check_timeout_s(self._settings.timeout_s)
        self._exchange = Exchange(self._settings, patient=bulk)
        self._on_reply = on_reply
        self._batcher = CallBatcher(
            self._ask,
            sequences_per_record=self._settings.sequences_per_record,
            share=self._settings.batch_calls,
            one_per_record=() if bulk else ("generate", "sequence"),
        )
        self._tokenizer = Tokenizer.from_directory(tokenizer) if tokenizer is not None else None

    async def start(self) -> None:
        """Connect; waits for the broker without limit, and logs it."""
        await self._exchange.start()

    async def close(self) -> None:
        """Fail what is pending with `ShuttingDown` and disconnect. Safe to call twice."""
        await self._exchange.close()
        if self._tokenizer is not None:
            self._tokenizer.close()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def embed(
        self,
        texts: str | Sequence[Text] | None = None,
        *,
        ids: Sequence[npt.ArrayLike] | None = None,
        pooling: str | None = None,
        normalize: bool | None = None,
        truncate: bool = False,
        dtype: str = "float32",
        prompt_name: str | None = None,
        prompt: str | None = None,
        dimensions: int | None = None,
        timeout_s: float | None = None,
    ) -> Vector:
        """Vectors of texts, or of sequences of token ids (special tokens included).

        Many texts are split over several records; concurrent calls share records (setting `batch_calls`).

        Args:
            prompt_name: name of the checkpoint's prompt that is prepended to each text; without it and `prompt`, the
                checkpoint's default. Token ids take no prompt.
            prompt: the prompt itself, in place of a name; "" for none.
            dimensions: length that vectors are cut to before they are normalised, for models trained so (Matryoshka).

        Returns:
            [n, dim]; for a single text (not in a list) [dim]. The array may be read-only: it shares the reply's memory.

        Raises:
            PenstockError: the first sequence's error; use `map` to get the other results as well.
        """
        options = Options(
            pooling, normalize, truncate, dtype=dtype, prompt_name=prompt_name, prompt=prompt, dimensions=dimensions
        )
        rows = await self._rows("embed", texts, ids, options, timeout_s)
        if isinstance(texts, str):
            return rows[0]  # type: ignore[no-any-return]  # embed's rows are vectors
        return np.concatenate(rows).reshape(len(rows), rows[0].size) if len(rows) > 1 else rows[0][np.newaxis]

    async def classify(
        self,
        texts: str | Sequence[Text] | None = None,
        *,
        ids: Sequence[npt.ArrayLike] | None = None,
        top_k: int = 1,
        truncate: bool = False,
        timeout_s: float | None = None,
    ) -> list[Classification]:
        """The best `top_k` labels (0: all) of each text or sequence of token ids; a single text gives one row.

        Raises:
            PenstockError: the first sequence's error; use `map` to get the other results as well.
        """
        return await self._rows("classify", texts, ids, Options(top_k=top_k, truncate=truncate), timeout_s)

    async def rerank(
        self, query: str, documents: Sequence[str], *, truncate: bool = False, timeout_s: float | None = None
    ) -> list[Ranked]:
        """Each document's index in `documents` and its score for the query, best first: `for index, score in …`.

        Scores are those of sentence-transformers' CrossEncoder. For scores in the documents' order, or of pairs with
        different queries, use `map("rerank", [(query, document), …])`.

        Raises:
            PenstockError: the first pair's error; use `map` to get the other results as well.
        """
        if isinstance(documents, str):
            raise InvalidRequest("`documents` must be a list of strings.")
        pairs = [(query, document) for document in documents]
        scores = await self._rows("rerank", pairs, None, Options(truncate=truncate), timeout_s)
        ranked = [Ranked(index, score) for index, score in enumerate(scores)]
        return sorted(ranked, key=lambda one: one.score, reverse=True)

    async def token_classify(
        self,
        texts: str | Sequence[str] | None = None,
        *,
        ids: Sequence[npt.ArrayLike] | None = None,
        top_k: int = 1,
        truncate: bool = False,
        timeout_s: float | None = None,
    ) -> list[list[TokenClass]]:
        """The best `top_k` labels (0: all) of each token of each text or sequence of token ids.

        Tokens of a text have their place in it, and special tokens are left out. Token ids have labels and no place.
        A single text gives one row.

        Raises:
            PenstockError: the first sequence's error; use `map` to get the other results as well.
        """
        return await self._rows("token_classify", texts, ids, Options(top_k=top_k, truncate=truncate), timeout_s)

    async def generate(
        self,
        texts: str | Sequence[str] | None = None,
        *,
        ids: Sequence[npt.ArrayLike] | None = None,
        truncate: bool = False,
        timeout_s: float | None = None,
        **generation: Any,
    ) -> list[Generation]:
        """What an encoder-decoder model generates for each text or sequence of token ids; a single text gives one row.

        `generation`: options by their names in transformers' generation_config.json, such as max_new_tokens, num_beams,
        do_sample, temperature and seed. The others are the model's own. Sampling without a seed differs at each call.

        Raises:
            PenstockError: the first sequence's error; use `map` to get the other results as well.
        """
        options = Options(truncate=truncate, generation=read_generation(generation))
        return await self._rows("generate", texts, ids, options, timeout_s)

    async def stream(
        self,
        text: str | None = None,
        *,
        ids: npt.ArrayLike | None = None,
        truncate: bool = False,
        timeout_s: float | None = None,
        **generation: Any,
    ) -> AsyncGenerator[Generation, None]:
        """`generate` for one text, or one sequence of token ids: `async for so_far in client.stream(…)`.

        Each item has all that was generated so far, and begins with the tokens of the one before it; its `finish` is
        "partial", and not so of the last one, which alone is certain to come. If the request is run again, because
        its worker has ended or refused it, the next item is the first to have more tokens. Sampling may then differ
        from the tokens shown: the last item is the answer.
        """
        options = recheck_options(
            Options(truncate=truncate, generation=read_generation(generation), stream=True), "generate", is_text=True
        )
        _, checked = check(None if text is None else [text], None if ids is None else [ids])
        _raise_first(checked)
        partials: asyncio.Queue[Sequence[Row] | None] = asyncio.Queue()
        attempts = Attempts.within(self._timeout_s(timeout_s))
        asking = asyncio.create_task(self._ask("generate", options, checked, attempts, partials.put_nowait))
        asking.add_done_callback(lambda _: partials.put_nowait(None))
        shown: tuple[int, ...] = ()
        try:
            while (rows := await partials.get()) is not None:
                row: Generation = rows[0]  # type: ignore[assignment]  # generate's rows are generations
                if len(row.tokens) > len(shown) and row.tokens[: len(shown)] == shown:
                    shown = row.tokens
                    yield row
            yield (await asking)[0]  # type: ignore[misc]  # likewise
        finally:
            asking.cancel()

    async def sequence(
        self, sequences: Sequence[Mapping[str, Any]], *, timeout_s: float | None = None
    ) -> list[dict[str, Emitted]]:
        """What the cells of a model made of cells emit for each sequence: by name an array [rows, width].

        Rows are those of the first node that emits the name, step after step, then those of the next node.

        Args:
            sequences: of each a map of the fields that the model reads, such as {"tokens": [5, 6, 7]}.

        Raises:
            PenstockError: the first sequence's error; use `map("sequence", …)` to get the other results as well.
        """
        return await self._rows("sequence", sequences, None, NO_OPTIONS, timeout_s)

    async def map(
        self,
        task: str,
        texts: Sequence[Text] | Sequence[Mapping[str, Any]] | None = None,
        *,
        ids: Sequence[npt.ArrayLike] | None = None,
        options: Options | None = None,
        timeout_s: float | None = None,
    ) -> list[Row | PenstockError]:
        """One result a sequence, in order: its row, or its own error. For `sequence`, `texts` are maps of fields.

        Sequences at fault are removed from their record and the others sent again. Retriable errors are retried after
        growing pauses: `Overloaded` three times, or with `bulk` until the deadline.
        """
        task, options = check_task(task), recheck_options(options, task, is_text=texts is not None)
        kind, sequences = _check(task, texts, ids)
        return await self._batcher.results(task, options, kind, sequences, self._timeout_s(timeout_s))

    async def map_rows(
        self,
        task: str,
        rows: Any,
        *,
        column: str | tuple[str, str] | None = None,
        options: Options | None = None,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[tuple[Any, Row | PenstockError], None]:
        """Each row with its result, or its own error, in order: `async for row, result in client.map_rows(…)`.

        Any number of rows is answered in bounded memory: at most 16,384 are read ahead.

        Args:
            rows: an iterable or async iterable of texts, pairs or mappings; or a table: Arrow's, a frame of pandas or
                polars, or a data set of Hugging Face. Of a table, the row that comes back is its text.
            column: of mappings and tables, the text's key or column; of pairs, the two.

        Raises:
            InvalidRequest: `rows` is none of these, or a table has no such column.
        """
        columns = () if column is None else (column,) if isinstance(column, str) else column
        answered = answer_stream(self, task, row_batches(rows, columns), options=options, timeout_s=timeout_s)
        async with aclosing(answered):
            async for batch, results in answered:
                for row_and_result in zip(batch.rows, results, strict=True):
                    yield row_and_result

    async def request(self, request: Request, *, timeout_s: float | None = None) -> Reply:
        """Send one record and await its reply.

        Raises:
            PenstockError: the worker's error, `Expired` after the deadline, or `ShuttingDown`.
        """
        task = check_task(request.task)
        options = recheck_options(request.options, task, is_text=request.text is not None)
        checked = dataclasses.replace(request, task=task, options=options)
        return await self._exchange.ask(checked, Attempts.within(self._timeout_s(timeout_s)))

    def _timeout_s(self, timeout_s: float | None) -> float:
        return self._default_timeout_s if timeout_s is None else check_timeout_s(timeout_s)

    async def _rows(
        self,
        task: str,
        texts: str | Sequence[Text] | Sequence[Mapping[str, Any]] | None,
        ids: Sequence[npt.ArrayLike] | None,
        options: Options,
        timeout_s: float | None,
    ) -> list[Any]:
        """Every row. Raises the first error; nothing is sent if a sequence fails its checks."""
        options = recheck_options(options, task, is_text=texts is not None)
        kind, sequences = _check(task, [texts] if isinstance(texts, str) else texts, ids)
        if not sequences:
            raise EmptyInput("There is nothing to send: give at least one text, or one sequence of token ids.")
        _raise_first(sequences)
        rows = await self._batcher.results(task, options, kind, sequences, self._timeout_s(timeout_s))
        _raise_first(rows)
        return rows

    async def _ask(
        self,
        task: str,
        options: Options,
        sequences: Sequence[Any],
        attempts: Attempts,
        partial: Callable[[Sequence[Row]], object] | None = None,
    ) -> Sequence[Row]:
        """Send one record of these sequences, all of one kind; returns the rows of its reply.

        `partial`: called with the rows of each partial reply.
        """
        self._exchange.check_open()  # the tokenizer's thread ends with the exchange
        model: str = self._settings.model
        encoded: list[Encoded] = []
        if isinstance(sequences[0], bytes):
            request = Request(model, task, concatenate_tokens(sequences), None, options)
        elif isinstance(sequences[0], dict):
            request = Request(model, task, sequences=tuple(sequences))
        elif self._tokenizer is None or any(isinstance(text, tuple) for text in sequences):
            # Pairs need token types, which `ids` does not carry: the worker tokenizes them.
            request = Request(model, task, None, tuple(sequences), options)
        else:
            prompted = self._tokenizer.prompts.apply(Request(model, task, None, tuple(sequences), options))
            spans = task == "token_classify"
            encoded = await self._tokenizer.encode_async(prompted.text or (), truncate=False, spans=spans)
            options = options._replace(prompt_name=None, prompt=None)  # it is in the ids
            request = Request(model, task, join_tokens([sequence.ids for sequence in encoded]), None, options)

        def rows_of(reply: Reply) -> Sequence[Row]:
            if encoded and self._tokenizer is not None and reply.generations is not None:
                return _with_texts(reply.generations, self._tokenizer)
            return _with_spans(reply, encoded).rows(task)

        got_partial = None if partial is None else lambda reply: partial(rows_of(reply))
        reply = await self._exchange.ask(request, attempts, got_partial)
        self._on_reply(reply, len(sequences))
        return rows_of(reply)


def _check(task: str, texts: Any, ids: Sequence[npt.ArrayLike] | None) -> tuple[Kind, list[Checked]]:
    """The sequences of a call, each checked. Raises InvalidRequest."""
    if task != "sequence":
        return check(texts, ids)
    if texts is None or ids is not None:
        raise InvalidRequest("`sequence` takes maps of fields, and no `ids`.")
    return Kind.FIELDS, check_fields(texts)


def _checked(settings: dict[str, Any]) -> ClientSettings:
    try:
        return ClientSettings(**settings)
    except ValidationError as error:
        faults = [f"`{'.'.join(map(str, fault['loc']))}`: {fault['msg']}" for fault in error.errors()]
        raise InvalidRequest("; ".join(faults).replace("Value error, ", "") + ".") from error
    except SettingsFileError as error:
        raise InvalidRequest(str(error)) from error


def _on_bulk_topic(settings: ClientSettings) -> ClientSettings:
    return settings.model_copy(update={"topic": bulk_topic(settings.topic or request_topic(settings.model))})


def _with_spans(reply: Reply, encoded: Sequence[Encoded]) -> Reply:
    """The reply with the spans of its tokens, which only the client knows when it has tokenized the texts."""
    spans = [sequence.spans for sequence in encoded if sequence.spans is not None]
    if not spans or reply.tokens is None:
        return reply
    lens = reply.tokens.lens
    if len(lens) != len(spans) or any(length > len(span) for length, span in zip(lens, spans, strict=True)):
        raise BackendError("The worker answered with other tokens than were sent.")
    cut = [_cut(span, length) for span, length in zip(spans, lens, strict=True)]
    return dataclasses.replace(reply, tokens=dataclasses.replace(reply.tokens, spans=np.concatenate(cut)))


def _with_texts(rows: Sequence[Generation], tokenizer: Tokenizer) -> list[Generation]:
    texts = tokenizer.decode([row.tokens for row in rows])
    return [dataclasses.replace(row, text=text) for row, text in zip(rows, texts, strict=True)]


def _cut(spans: Uint32Array, num_tokens: int) -> Uint32Array:
    """The spans that remain when a worker truncates: the first tokens and the last one."""
    return spans if len(spans) == num_tokens else np.concatenate([spans[: num_tokens - 1], spans[-1:]])


def _raise_first(results: Sequence[object]) -> None:
    for result in results:
        if isinstance(result, PenstockError):
            raise result
