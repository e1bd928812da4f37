"""Calls of one client: sequences are checked, sent in records that calls share, and answered by rows."""

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Self, Unpack

import numpy.typing as npt
from pydantic import ValidationError

from penstock.producer.answer_stream import answer_stream
from penstock.producer.errors import EmptyInput, InvalidRequest, PenstockError, WrongArgument, WrongLoop, did_you_mean
from penstock.producer.keywords import ClientKeywords
from penstock.producer.one_revision import OneRevision
from penstock.producer.request_preparation import request_of, tokenized
from penstock.producer.row_source import column_names, row_batches
from penstock.producer.settings import ClientSettings
from penstock.producer.settings_sources import SettingsFileError
from penstock.producer.tokenization import Tokenizer
from penstock.producer.transport.attempts import Attempts
from penstock.producer.transport.call_batcher import CallBatcher
from penstock.producer.transport.exchange import Exchange
from penstock.producer.wire.messages import STEPPED_TASKS, Options, Reply, Request, Row, Text
from penstock.producer.wire.options import check_task, check_timeout_s, recheck_options
from penstock.producer.wire.sequences import check
from penstock.producer.wire.topics import bulk_topic, request_topic

_OWN_KEYWORDS = ("tokenizer", "bulk", "on_reply")  # of `Caller`, beside the settings
_TYPE_FAULTS = ("_type", "_parsing")  # end pydantic's names of the errors of a type


class Caller:
    """The base of `Client`: the connection, calls by the task's name, and single records."""

    def __init__(
        self,
        *,
        tokenizer: str | Path | None = None,
        bulk: bool = False,
        on_reply: Callable[[Reply, int], object] = lambda reply, num_rows: None,
        **settings: Unpack[ClientKeywords],
    ) -> None:
        """Check the settings; `start` connects.

        Args:
            tokenizer: a checkpoint directory; the client then tokenizes texts, in threads, and not the worker.
            bulk: send to the bulk topic, whose requests use the capacity that online requests leave, and retry
                `Overloaded` until the deadline. Give such calls a `timeout_s` of hours.
            on_reply: called with each reply and its number of rows, before a call returns them.
            settings: fields of `ClientSettings` (model=…, bootstrap_servers=…); PENSTOCK_* variables give the others.

        Raises:
            WrongArgument: a keyword is unknown, or of another type; the message names it.
            InvalidRequest: settings are missing or out of bounds; the message names each.
        """
        checked = _checked(dict(settings))
        self._settings = _on_bulk_topic(checked) if bulk else checked
        self._default_timeout_s = check_timeout_s(self._settings.timeout_s)
        self._exchange = Exchange(self._settings, patient=bulk)
        self._on_reply = on_reply
        self._batcher = CallBatcher(
            self._ask,
            sequences_per_record=self._settings.sequences_per_record,
            share=self._settings.batch_calls,
            one_per_record=() if bulk else STEPPED_TASKS,
            on_reply=on_reply,
        )
        self._tokenizer = Tokenizer.from_directory(tokenizer) if tokenizer is not None else None
        self._loop: asyncio.AbstractEventLoop | None = None  # that of the first `start`

    async def start(self) -> None:
        """Connect. From now on the client belongs to the running event loop.

        Raises:
            KafkaUnreachable: no broker has answered within `connect_timeout_s`.
            InvalidRequest: the credentials are refused, a topic is missing, or this client may not use it.
        """
        self._check_loop()
        self._loop = asyncio.get_running_loop()
        try:
            await self._exchange.start()
        except BaseException:
            await self._exchange.close()
            raise

    async def close(self) -> None:
        """Fail what is pending with `ShuttingDown` and disconnect. Safe to call twice."""
        self._check_loop()
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

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    async def map(
        self,
        task: str,
        texts: Sequence[Text] | Sequence[Mapping[str, Any]] | None = None,
        *,
        ids: Sequence[npt.ArrayLike] | None = None,
        options: Options | None = None,
        timeout_s: float | None = None,
        revision: OneRevision | None = None,
        on_reply: Callable[[Reply, int], object] | None = None,
    ) -> list[Row | PenstockError]:
        """One result a sequence, in order: its row, or its own error. For `sequence`, `texts` are maps of fields.

        An error about one sequence names its place in the call, from 0. Sequences at fault are removed from their
        record and the others sent again. Retriable errors are retried after growing pauses: `Overloaded` three times,
        or with `bulk` until the deadline.

        Args:
            revision: shared by several calls whose answers must be of one revision of the model.
            on_reply: called with each reply to this call and its number of rows. The call then shares no record, so
                that what a reply counts, such as tokens, is of this call alone.

        Raises:
            MixedRevisions: two revisions of the model answered; see the setting `allow_mixed_revisions`.
        """
        self._check_loop()
        task, options = check_task(task), recheck_options(options, task, is_text=texts is not None)
        kind, sequences = check(task, texts, ids, has_labels=options.labels is not None)
        if revision is None:
            revision = self._one_revision()
        timeout_s = self._timeout_s(timeout_s)
        return await self._batcher.results(task, options, kind, sequences, timeout_s, revision, on_reply)

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
            WrongArgument: `rows` is none of these.
            InvalidRequest: a table has no such column.
            MixedRevisions: another revision of the model answered than before. The rows so far are of one.
        """
        self._check_loop()
        batches, revision = row_batches(rows, column_names(column)), self._one_revision()
        answered = answer_stream(self, task, batches, options=options, timeout_s=timeout_s, revision=revision)
        async with aclosing(answered):
            async for batch, results in answered:
                for row_and_result in zip(batch.rows, results, strict=True):
                    yield row_and_result

    async def request(self, request: Request, *, timeout_s: float | None = None) -> Reply:
        """Send one record and await its reply.

        Raises:
            PenstockError: the worker's error, `Expired` after the deadline, or `ShuttingDown`.
        """
        self._check_loop()
        if not isinstance(request, Request):
            raise WrongArgument(f"`request` must be a Request. Given: {type(request).__name__}")
        task = check_task(request.task)
        options = recheck_options(request.options, task, is_text=request.text is not None)
        checked = dataclasses.replace(request, task=task, options=options)
        return await self._exchange.ask(checked, Attempts.within(self._timeout_s(timeout_s)))

    def _check_loop(self) -> None:
        """Raise WrongLoop where an answer would never come: replies are handed out on the loop of `start`."""
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            raise WrongLoop(
                "This client was started on another event loop, such as that of an earlier asyncio.run or of another "
                "thread. Make a Client in each loop, or use SyncClient, which any thread may call."
            )

    def _one_revision(self) -> OneRevision:
        """The state that several calls share, so that their answers are of one revision of the model."""
        return OneRevision(allow_mixed=self._settings.allow_mixed_revisions)

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
        self._check_loop()
        options = recheck_options(options, task, is_text=texts is not None)
        listed = [texts] if isinstance(texts, str) else texts
        kind, sequences = check(task, listed, ids, has_labels=options.labels is not None)
        if not sequences:
            raise EmptyInput("There is nothing to send: give at least one text, or one sequence of token ids.")
        raise_first(sequences)
        timeout_s = self._timeout_s(timeout_s)
        rows = await self._batcher.results(task, options, kind, sequences, timeout_s, self._one_revision())
        raise_first(rows)
        return rows

    def _ask(
        self,
        task: str,
        options: Options,
        sequences: Sequence[Any],
        attempts: Attempts,
        partial: Callable[[Reply], object] | None = None,
    ) -> Coroutine[Any, Any, Reply]:
        """Send one record of these sequences, all of one kind; returns its reply.

        `partial`: called with each partial reply.
        """
        request = request_of(self._settings.model, task, options, sequences)
        if self._tokenizer is None:
            return self._exchange.ask(request, attempts, partial)
        return self._ask_by_ids(request, self._tokenizer, attempts, partial)

    async def _ask_by_ids(
        self, request: Request, tokenizer: Tokenizer, attempts: Attempts, partial: Callable[[Reply], object] | None
    ) -> Reply:
        self._exchange.check_open()  # the tokenizer's thread ends with the exchange
        prepared = await tokenized(request, tokenizer)
        got_partial = None if partial is None else lambda reply: partial(prepared.completed(reply))
        return prepared.completed(await self._exchange.ask(prepared.request, attempts, got_partial))


def _checked(settings: dict[str, Any]) -> ClientSettings:
    known = {*ClientSettings.model_fields, *_OWN_KEYWORDS}
    for name in settings.keys() - known:
        raise WrongArgument(f"A client has no argument `{name}`.{did_you_mean(name, known)}")
    try:
        return ClientSettings(**settings)
    except ValidationError as error:
        faults = [f"`{'.'.join(map(str, fault['loc']))}`: {fault['msg']}" for fault in error.errors()]
        is_typed = not any(fault["type"].endswith(_TYPE_FAULTS) for fault in error.errors())
        reason = "; ".join(faults).replace("Value error, ", "") + "."
        raise (InvalidRequest if is_typed else WrongArgument)(reason) from error
    except SettingsFileError as error:
        raise InvalidRequest(str(error)) from error


def _on_bulk_topic(settings: ClientSettings) -> ClientSettings:
    return settings.model_copy(update={"topic": bulk_topic(settings.topic or request_topic(settings.model))})


def raise_first(results: Sequence[object]) -> None:
    """Raise the first error among results."""
    for result in results:
        if isinstance(result, PenstockError):
            raise result
