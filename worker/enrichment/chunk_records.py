"""Records of chunks: those of one record leave together, with deletes of the chunks that its key no longer has.

A key's earlier version may have had more chunks; see `ChunkBounds` for how many. A tombstone, and a record without a
text, have no chunks: all are deleted. They are keyed `key#n`, and go to the partition of the original key: so their
order is that of the originals. A record is acknowledged when all that it has written is.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence

from penstock.producer.errors import InvalidRequest
from penstock.worker.enrichment.chunk_bounds import ChunkBounds
from penstock.worker.enrichment.output import ChunkOutput, Output
from penstock.worker.requests.record import PendingRecord
from penstock.worker.stop_signal import watched

_FEW_PARTS = 10_000  # made at once, unless one record has more

Leave = Callable[[Sequence[Output], Sequence[ChunkOutput]], None]


class ChunkRecords:
    """The way of one output topic's chunks: first in, first out. Called on the event loop."""

    def __init__(self, bounds: ChunkBounds, is_present: Callable[[PendingRecord], bool], leave: Leave) -> None:
        """`is_present`: see `RecordLedger`. `leave` gets outputs, and the records of chunks that are sent for them.

        It gets those of other assignments without any: the partition's present owner makes them.
        """
        self._bounds = bounds
        self._is_present = is_present
        self._leave = leave
        self._waiting: list[Output] = []
        self._task: asyncio.Task[None] | None = None

    def put(self, outputs: Sequence[Output]) -> None:
        """Send the chunks of these. Those of a key come in their order."""
        self._waiting += outputs
        if self._task is None or self._task.done():
            self._task = watched(self._run())

    async def _run(self) -> None:
        while self._waiting:
            outputs, self._waiting = self._waiting, []
            await self._bounds.read(max([one.origin.epoch for one in outputs]))
            counts = [(original_key(one.origin), len(one.chunks or ())) for one in outputs]
            before = await self._bounds.take(counts)
            for some in _few(list(zip(outputs, before, strict=True))):
                parts = [part for one, bound in some if self._is_present(one.origin) for part in _parts(one, bound)]
                self._leave([one for one, _ in some], parts)
                await asyncio.sleep(0)  # a poll of deletes may make millions

    def close(self) -> None:
        """Send nothing more."""
        if self._task is not None:
            self._task.cancel()


def original_key(record: PendingRecord) -> bytes:
    """The key whose chunks a record has.

    Raises:
        InvalidRequest: it has none, or one that is no text: `key#n` would then be no key of its kind.
    """
    key = record.original.key
    if key is None:
        raise InvalidRequest("The record has no key, which the records of its chunks need (chunk_output).")
    try:
        is_text = "\0" not in key.decode()
    except UnicodeDecodeError:
        is_text = False
    if not is_text:  # a number in binary, or Confluent's framing, which begins with a zero byte
        raise InvalidRequest("The record's key is not text, to which the number of a chunk can be added.")
    return key


def _few(bounded: Sequence[tuple[Output, int]]) -> Iterator[Sequence[tuple[Output, int]]]:
    """Outputs with their bounds, in their order, in groups of few parts."""
    group: list[tuple[Output, int]] = []
    num_parts = 0
    for output, bound in bounded:
        num_own = max(bound, len(output.chunks or ()))
        if group and num_parts + num_own > _FEW_PARTS:
            yield group
            group, num_parts = [], 0
        group.append((output, bound))
        num_parts += num_own
    if group:
        yield group


def _parts(output: Output, bound: int) -> list[ChunkOutput]:
    """The records of an output's chunks, and the deletes of those that there may have been up to a bound."""
    key, chunks = original_key(output.origin), output.chunks or ()
    values = [*chunks, *[None] * (bound - len(chunks))]
    return [
        ChunkOutput(
            b"%b#%d" % (key, number),
            value,
            output.headers,
            output.done,
            output.origin,
            output.topic,
            output.outcome,
            whole=output,
        )
        for number, value in enumerate(values)
    ]
