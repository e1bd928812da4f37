"""Batching of calls into records, and handling of each record until all of its rows have a result.

Calls of one turn of the event loop share records. A record is a list of rows, each one sequence of one call. Rows at
fault are removed and the others sent again, so sharing a record is invisible to callers.

Overload and expiry concern a whole record, even where a reply names rows. The parts of a record share one deadline and
one count of attempts (see `Exchange`); when these are spent, no part is sent again. A call of n sequences that fill r
records therefore sends at most 4 r records under overload and expiry. A further one is sent only after a reply that
settled at least one row, or that made the client halve a record which was too large.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from penstock.producer.errors import (
    BackendError,
    Expired,
    InvalidRequest,
    MixedRevisions,
    Overloaded,
    PenstockError,
    ShuttingDown,
)
from penstock.producer.one_revision import OneRevision
from penstock.producer.transport.attempts import Attempts
from penstock.producer.wire.messages import TOKEN_VECTOR_TASKS, Options, Reply, Row
from penstock.producer.wire.sequences import Checked, Kind, num_bytes

Result = Row | PenstockError
OnReply = Callable[[Reply, int], object]  # called with a reply and the number of sequences that it answers

# Sends the sequences, all of one kind, as one record, and returns its reply. Raises PenstockError.
Ask = Callable[[str, Options, Sequence[Any], Attempts], Awaitable[Reply]]

_OF_RECORD = (Overloaded, ShuttingDown, Expired)  # errors of the moment, which no row alone has
_RECORD_BYTES = 256 * 1024  # records of long sequences stay well below the broker's usual 1 MiB
# With a vector for each token so do the replies: of 1,000 tokens with 128 numbers each. A worker refuses a record whose
# reply is too large, and its parts are sent again.
_TOKEN_VECTOR_RECORD_BYTES = 4 * 1024


class CallBatcher:
    """Turns calls into records. Use from one event loop."""

    def __init__(
        self,
        ask: Ask,
        *,
        sequences_per_record: int,
        share: bool,
        one_per_record: Collection[str] = (),
        on_reply: Callable[[Reply, int], object] = lambda reply, num_rows: None,
    ) -> None:
        """`share`: calls of one turn of the event loop may share a record.

        one_per_record: tasks of which each sequence is a record: some take far longer than others, and a record is
        answered as a whole.
        on_reply: called with each reply and the number of sequences that it answers.
        """
        self._ask = ask
        self._sequences_per_record = sequences_per_record
        self._share = share
        self._one_per_record = one_per_record
        self._on_reply = on_reply
        self._open: dict[tuple[str, Options, Kind, float], _Record] = {}  # sent at the end of this turn
        self._at_most: dict[tuple[str, Options], int] = {}  # sequences a record, where the worker takes fewer
        self._tasks: set[asyncio.Task[None]] = set()

    async def results(
        self,
        task: str,
        options: Options,
        kind: Kind,
        sequences: list[Checked],
        timeout_s: float,
        revision: OneRevision,
        on_reply: OnReply | None = None,
    ) -> list[Result]:
        """One result a sequence, in order: its row, or its own error, which names its place. Raises MixedRevisions.

        `on_reply`: called with the replies to this call, whose records no other call then shares.
        """
        share = self._share and on_reply is None
        if len(sequences) == 1 and not (share or isinstance(sequences[0], PenstockError)):
            # It has a record of its own: nothing is shared, and nothing can be halved.
            try:
                reply = await self._ask(task, options, sequences, Attempts.within(timeout_s))
                answers = self._rows_of(reply, task, 1, on_reply)
            except PenstockError as error:
                fault = _own_faults(error).get(0)
                return [_again(error) if fault is None else kind.fault_of(0, fault)]
            revision.check(reply.model, reply.revision)
            return list(answers)
        call = _Call(kind, sequences, revision)
        records = self._assign(call, (task, options, kind, timeout_s), share, on_reply)
        if not records:
            return call.items
        try:
            if not share:
                await self._answer(records[-1])  # of this call alone, so it needs no task
            await call.finished
        except (asyncio.CancelledError, MixedRevisions):
            call.finished.cancel()
            for record in records:
                record.abandon()
            raise
        return call.items

    def _assign(
        self, call: "_Call", key: tuple[str, Options, Kind, float], share: bool, on_reply: OnReply | None
    ) -> list["_Record"]:
        """Put each sequence of a call into a record; returns the records."""
        task, options, _, timeout_s = key
        most_rows = max(1, self._sequences_per_record // len(options.labels or ("",)))
        at_most = self._at_most.get((task, options), most_rows)
        if task in self._one_per_record:
            at_most = 1
        most_bytes = _TOKEN_VECTOR_RECORD_BYTES if task in TOKEN_VECTOR_TASKS else _RECORD_BYTES
        record = at_first = self._open.get(key) if share else None
        records: list[_Record] = []
        for index, sequence in enumerate(call.items):
            if isinstance(sequence, PenstockError):
                continue
            size = num_bytes(sequence)
            if record is None or len(record.rows) >= at_most or record.num_bytes + size > most_bytes:
                if record is not None:
                    self._send(record)
                record = _Record(task, options, Attempts.within(timeout_s), on_reply)
            if not records or records[-1] is not record:
                records.append(record)
                if record is at_first:
                    record.attempts.add_caller()
            record.rows.append((call, index))
            record.num_bytes += size
            call.unsettled += 1
        if share and record is not None and record is not at_first:
            if not self._open:
                asyncio.get_running_loop().call_soon(self._flush)
            self._open[key] = record
        return records

    def _flush(self) -> None:
        records, self._open = self._open, {}
        for record in records.values():
            self._send(record)

    def _send(self, record: "_Record") -> None:
        record.carrier = asyncio.create_task(self._carry(record))
        self._tasks.add(record.carrier)
        record.carrier.add_done_callback(self._tasks.discard)

    async def _carry(self, record: "_Record") -> None:
        try:
            await self._answer(record)
        except Exception as error:  # a bug; otherwise its callers would never return
            for call, _ in record.rows:
                call.fail(error)

    async def _answer(self, record: "_Record") -> None:
        """Send the rows of a record, in parts and again if needed, until each is settled."""
        while rows := record.next_part():
            try:
                sequences = [call.items[index] for call, index in rows]
                reply = await self._ask(record.task, record.options, sequences, record.attempts)
                answers = self._rows_of(reply, record.task, len(rows), record.on_reply)
            except PenstockError as error:
                record.refuse(rows, error)
            else:
                record.answer(rows, answers, reply)
        if record.refusal and record.largest:
            self._at_most[record.task, record.options] = record.largest

    def _rows_of(self, reply: Reply, task: str, num_rows: int, on_reply: OnReply | None) -> Sequence[Row]:
        self._on_reply(reply, num_rows)
        if on_reply is not None:
            on_reply(reply, num_rows)
        rows = reply.rows(task)
        if len(rows) != num_rows:
            raise BackendError(f"The worker answered {num_rows} sequences with {len(rows)} rows.")
        return rows


class _Call:
    """The sequences of one call, each replaced by its result."""

    __slots__ = ("finished", "items", "kind", "revision", "unsettled")

    def __init__(self, kind: Kind, sequences: list[Checked], revision: OneRevision) -> None:
        self.kind = kind
        self.items: list[Any] = sequences  # those that are errors are never sent
        self.revision = revision
        self.unsettled = 0
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(self, index: int, result: Result) -> None:
        """Record one result. Called once a sequence, unless the call was cancelled."""
        self.items[index] = result
        self.unsettled -= 1
        if self.unsettled == 0 and not self.finished.done():
            self.finished.set_result(None)

    def fail(self, error: Exception) -> None:
        """End the whole call with an error."""
        if not self.finished.done():
            self.finished.set_exception(error)


_RowRef = tuple[_Call, int]  # a call, and the index of one of its sequences


class _Record:
    """Rows that are sent together, or in parts if they are too many."""

    __slots__ = (
        *("attempts", "carrier", "largest", "num_bytes", "on_reply", "options", "parts", "refusal", "rows", "task"),
    )

    def __init__(self, task: str, options: Options, attempts: Attempts, on_reply: OnReply | None) -> None:
        self.task = task
        self.on_reply = on_reply  # of the one call whose record it is; None: calls may share it
        self.options = options
        self.attempts = attempts
        self.rows: list[_RowRef] = []
        self.num_bytes = 0
        self.carrier: asyncio.Task[None] | None = None  # None before it is sent
        self.parts = [self.rows]  # not sent yet, or to be sent again
        self.refusal = ""  # message for which a part was halved
        self.largest = 0  # rows of the largest part that was answered

    def next_part(self) -> list[_RowRef]:
        """The rows to send next, without those of cancelled calls; none if all rows are settled."""
        rows: list[_RowRef] = []
        while self.parts and not rows:
            rows = [row for row in self.parts.pop() if not row[0].finished.done()]
        return rows

    def answer(self, rows: list[_RowRef], answers: Sequence[Row], reply: Reply) -> None:
        """Settle a part with the answers of its reply. Calls that have some of another revision end with an error."""
        self.largest = max(self.largest, len(rows))
        checked: _Call | None = None
        for (call, index), answer in zip(rows, answers, strict=True):
            if call is not checked:
                checked = call
                try:
                    call.revision.check(reply.model, reply.revision)
                except MixedRevisions as error:
                    call.fail(error)
            call.settle(index, answer)

    def refuse(self, rows: list[_RowRef], error: PenstockError) -> None:
        """Settle what the error concerns, and put the other rows of the part among those to send."""
        if isinstance(error, _OF_RECORD):
            self._settle([*rows, *self._rest()], error)
        elif error.rows:
            self.parts.append(self._settle(rows, error))
        elif type(error) is InvalidRequest and len(rows) > 1:
            # No row is at fault, so there are too many of them for a record or for its reply.
            half = (len(rows) + 1) // 2
            self.parts += [rows[half:], rows[:half]]
            self.refusal = error.message
        else:
            if len(rows) == 1:
                if error.message == self.refusal:  # a single row meets it too: the number of rows is not the cause
                    rows = [*rows, *self._rest()]
                self.refusal = ""
            self._settle(rows, error)

    def abandon(self) -> None:
        """A call was cancelled: cancel the record if no other call needs it."""
        if self.carrier is not None and all(call.finished.done() for call, _ in self.rows):
            self.carrier.cancel()

    def _rest(self) -> list[_RowRef]:
        rest = [row for part in self.parts for row in part]
        self.parts.clear()
        return rest

    @staticmethod
    def _settle(rows: list[_RowRef], error: PenstockError) -> list[_RowRef]:
        """Settle the rows at fault, or all if none is; returns the others."""
        own = _own_faults(error)
        is_of_all = isinstance(error, _OF_RECORD) or own.keys().isdisjoint(range(len(rows)))
        others: list[_RowRef] = []
        for place, (call, index) in enumerate(rows):
            if place in own:
                call.settle(index, call.kind.fault_of(index, own[place]))
            elif is_of_all:
                call.settle(index, _again(error))
            else:
                others.append((call, index))
        return others


def _own_faults(error: PenstockError) -> dict[int, PenstockError]:
    """Place in the record -> the fault of that sequence alone."""
    return {place: fault for place, fault in error.rows.items() if not isinstance(fault, _OF_RECORD)}


def _again(error: PenstockError) -> PenstockError:
    """An error for one of several callers: they raise it, and a traceback grows with every raise."""
    return type(error)(*error.args)
