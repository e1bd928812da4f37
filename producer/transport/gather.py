"""Calls into records: those made in one turn of the event loop share them, and each record is seen to its end.

A record is a list of rows, each one sequence of one call. Rows at fault are taken out and the others sent again, so
that no caller learns with whom it travelled.
"""

import asyncio
import copy
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.producer.errors import BackendError, InvalidRequest, PenstockError
from penstock.producer.wire.messages import Options, Row
from penstock.producer.wire.sequences import Checked, Kind, num_bytes

Result = Row | PenstockError

# Sends the sequences, all of one kind, as one record, and returns one row a sequence. Raises PenstockError.
Ask = Callable[[str, Options, Sequence[Any], float], Awaitable[Sequence[Row]]]

_RECORD_BYTES = 256 * 1024  # records of long sequences are split well below the broker's usual 1 MiB


class Gatherer:
    """Turns calls into records. Use from one event loop."""

    def __init__(self, ask: Ask, *, sequences_per_record: int, share: bool) -> None:
        """`share`: whether calls of one turn of the event loop may travel in one record."""
        self._ask = ask
        self._sequences_per_record = sequences_per_record
        self._share = share
        self._open: dict[tuple[str, Options, Kind, float], _Record] = {}  # that leave at the end of this turn
        self._at_most: dict[tuple[str, Options], int] = {}  # sequences a record, where the worker takes fewer
        self._tasks: set[asyncio.Task[None]] = set()

    async def results(
        self, task: str, options: Options, kind: Kind, sequences: list[Checked], timeout_s: float
    ) -> list[Result]:
        """One result a sequence, in order: its row, or the error that is its own and nobody else's."""
        call = _Call(sequences)
        if not call.unsettled:
            return call.results
        records = self._place(call, (task, options, kind, timeout_s))
        try:
            if not self._share:
                await self._answer(records[-1])  # nobody else's, so it needs no task of its own
            await call.finished
        except asyncio.CancelledError:
            call.finished.cancel()
            for record in records:
                record.abandon()
            raise
        return call.results

    def _place(self, call: "_Call", key: tuple[str, Options, Kind, float]) -> list["_Record"]:
        """Put each sequence of a call into a record; returns the records."""
        task, options, _, timeout_s = key
        at_most = self._sequences_per_record
        if self._at_most:
            at_most = self._at_most.get((task, options), at_most)
        record = at_first = self._open.get(key)
        records: list[_Record] = []
        for index, sequence in enumerate(call.sequences):
            if isinstance(sequence, PenstockError):
                continue
            size = num_bytes(sequence)
            if record is None or len(record.rows) >= at_most or record.num_bytes + size > _RECORD_BYTES:
                if record is not None:
                    self._send(record)
                record = _Record(task, options, time.time() + timeout_s)
            if not records or records[-1] is not record:
                records.append(record)
            record.rows.append((call, index))
            record.num_bytes += size
        if self._share and record is not None and record is not at_first:
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
        except Exception as error:  # a bug, and its callers must not wait for ever
            for call, _ in record.rows:
                call.fail(error)

    async def _answer(self, record: "_Record") -> None:
        """Send the rows of a record, again and in parts if need be, until each is settled."""
        trips = [record.rows]
        refusal = ""  # why a part was halved
        largest = 0  # part that was answered
        while trips:
            rows = [(call, index) for call, index in trips.pop() if not call.finished.done()]
            if not rows:
                continue
            try:
                answers = await self._ask_rows(record, rows)
            except PenstockError as error:
                if not error.rows and type(error) is InvalidRequest and len(rows) > 1:
                    # None of them is at fault, so there are too many of them: for a record, or for its reply.
                    half = (len(rows) + 1) // 2
                    trips += [rows[half:], rows[:half]]
                    refusal = error.message
                    continue
                if len(rows) == 1 and not error.rows:
                    if error.message == refusal:  # alone as well: it never was the number of them
                        rows += [row for trip in trips for row in trip]
                        trips.clear()
                    refusal = ""  # and nothing is learned from it
                trips.append(_settle_faults(rows, error))
            else:
                largest = max(largest, len(rows))
                for (call, index), answer in zip(rows, answers, strict=True):
                    call.settle(index, answer)
        if refusal and largest:
            self._at_most[record.task, record.options] = largest

    async def _ask_rows(self, record: "_Record", rows: list["_Place"]) -> Sequence[Row]:
        sequences = [call.sequences[index] for call, index in rows]
        answers = await self._ask(record.task, record.options, sequences, record.deadline)
        if len(answers) != len(rows):
            raise BackendError(f"The worker answered {len(rows)} sequences with {len(answers)} rows.")
        return answers


def _settle_faults(rows: list["_Place"], error: PenstockError) -> list["_Place"]:
    """Give the rows at fault their own error, or all of them the record's; returns the others, to be sent again."""
    faults = {position: own for position, own in error.rows.items() if position in range(len(rows))}
    if not faults:
        # Each its own copy: callers raise it, and a traceback grows with every raise.
        faults = {position: copy.copy(error) for position in range(len(rows))}
    for position, fault in faults.items():
        call, index = rows[position]
        call.settle(index, fault)
    return [row for position, row in enumerate(rows) if position not in faults]


class _Call:
    """The sequences of one caller, and what became of each."""

    __slots__ = ("finished", "results", "sequences", "unsettled")

    def __init__(self, sequences: list[Checked]) -> None:
        self.sequences: list[Any] = sequences  # only those that are no errors are asked for
        self.results: list[Any] = sequences.copy()  # the errors stay, the others are replaced
        self.unsettled = sum([not isinstance(sequence, PenstockError) for sequence in sequences])
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(self, index: int, result: Result) -> None:
        """Called once a sequence, unless the caller has gone."""
        self.results[index] = result
        self.unsettled -= 1
        if self.unsettled == 0 and not self.finished.done():
            self.finished.set_result(None)

    def fail(self, error: Exception) -> None:
        """The whole call failed, in a way that nobody foresaw."""
        if not self.finished.done():
            self.finished.set_exception(error)


_Place = tuple[_Call, int]  # the caller, and which of its sequences


@dataclass(slots=True, eq=False)
class _Record:
    """What is to be sent together."""

    task: str
    options: Options
    deadline: float  # Unix time, seconds
    rows: list[_Place] = field(default_factory=list)
    num_bytes: int = 0
    carrier: asyncio.Task[None] | None = None  # None before it is sent

    def abandon(self) -> None:
        """A caller has gone. The last one takes the record along."""
        if self.carrier is not None and all(call.finished.done() for call, _ in self.rows):
            self.carrier.cancel()
