"""Calls of one client: sequences are checked, sent in records that calls share, and answered by rows."""

import dataclasses
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy.typing as npt
from pydantic import ValidationError

from penstock.producer.answer_stream import answer_stream
from penstock.producer.errors import EmptyInput, InvalidRequest, PenstockError
from penstock.producer.request_preparation import prepare
from penstock.producer.row_source import row_batches
from penstock.producer.settings import ClientSettings
from penstock.producer.settings_file import SettingsFileError
from penstock.producer.tokenization import Tokenizer
from penstock.producer.transport.attempts import Attempts
from penstock.producer.transport.call_batcher import CallBatcher
from penstock.producer.transport.exchange import Exchange
from penstock.producer.wire.messages import STEPPED_TASKS, Options, Reply, Request, Row, Text
from penstock.producer.wire.options import check_task, check_timeout_s, recheck_options
from penstock.producer.wire.sequences import Checked, Kind, check, check_fields
from penstock.producer.wire.topics import bulk_topic, request_topic


class Caller:
    """The base of `Client`: the connection, calls by the task's name, and single records."""

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
            one_per_record=() if bulk else STEPPED_TASKS,
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
                polars, or a data set of Hugging Face. A table's row comes back as a mapping from its columns' names.
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
        raise_first(sequences)
        rows = await self._batcher.results(task, options, kind, sequences, self._timeout_s(timeout_s))
        raise_first(rows)
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
        prepared = await prepare(self._settings.model, task, options, sequences, self._tokenizer)
        got_partial = None if partial is None else lambda reply: partial(prepared.rows_of(reply))
        reply = await self._exchange.ask(prepared.request, attempts, got_partial)
        self._on_reply(reply, len(sequences))
        return prepared.rows_of(reply)


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


def raise_first(results: Sequence[object]) -> None:
    """Raise the first error among results."""
    for result in results:
        if isinstance(result, PenstockError):
            raise result
