"""Partial replies: what requests that stream have of their results so far. No answer waits for them.

They have a producer of their own, so that none is ahead of an answer. A sequence has one underway at most. Each has all
that came before, so the next one after an acknowledgement makes up for those that were left out.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog
from aiokafka.errors import KafkaError

from penstock.engine.types import Float32Array
from penstock.producer.transport.outbox import Destination, Outbox, OutRecord
from penstock.producer.wire.headers import PARTIAL
from penstock.worker.requests.sequence_block import SequenceBlock
from penstock.worker.stop_signal import watched

_MOST_UNDERWAY = 256  # to one destination, which may have no leader
_RETRY_S = 5.0

log = structlog.get_logger("penstock.delivery")

Encode = Callable[[SequenceBlock, Float32Array], bytes]


@dataclass(slots=True)
class _Partial(OutRecord):
    sequence: SequenceBlock


class PartialReplies:
    """Called on the worker's event loop only."""

    def __init__(self, outbox: Outbox | None, encode: Encode) -> None:
        """Without an outbox none is sent. `outbox` has not been started: few models have requests that stream."""
        self._outbox = outbox
        self._encode = encode
        self._starting: asyncio.Task[None] | None = None
        self._underway: set[SequenceBlock] = set()
        self._num_underway: Counter[Destination] = Counter()

    def send(self, sequences: Sequence[SequenceBlock], result: Float32Array) -> None:
        """Send what these sequences, which are equal, have so far; not to those that have one underway."""
        outbox = self._outbox
        if outbox is None:
            return
        if self._starting is None:
            self._starting = watched(_start(outbox))
        for sequence in sequences if self._starting.done() else ():
            destination = _destination(sequence)
            if sequence not in self._underway and self._num_underway[destination] < _MOST_UNDERWAY:
                self._underway.add(sequence)
                self._num_underway[destination] += 1
                outbox.put(*destination, [self._record(sequence, result)])

    async def stop(self) -> None:
        """Disconnect. Those that are underway are dropped."""
        if self._outbox is not None and self._starting is not None:
            self._starting.cancel()
            await self._outbox.stop(0.0)

    def _record(self, sequence: SequenceBlock, result: Float32Array) -> _Partial:
        address = sequence.request.address
        headers = [*address.headers(), (PARTIAL, b"%d" % sequence.indices[0])]
        return _Partial(partial_key(sequence), self._encode(sequence, result), headers, self._ended, sequence)

    def _ended(self, partials: Sequence[_Partial], error: KafkaError | None) -> None:
        """They were acknowledged, or their topic does not take them. The record still has to be answered."""
        for partial in partials:
            self._underway.remove(partial.sequence)
            destination = _destination(partial.sequence)
            self._num_underway[destination] -= 1
            if not self._num_underway[destination]:
                del self._num_underway[destination]


async def _start(outbox: Outbox) -> None:
    """Connect. A refusal, as of a privilege that was taken away, must not end the worker: its answers need none."""
    while True:
        try:
            await outbox.start()
        except KafkaError as error:
            log.warning("partial_replies_unavailable", error=str(error), retry_s=_RETRY_S)
            await asyncio.sleep(_RETRY_S)
        else:
            return


def partial_key(sequence: SequenceBlock) -> bytes:
    """The key of all partial replies of one sequence, whichever worker sends them; not that of the reply.

    A reader that drops replies with a key that it has seen, or a compacted topic, takes none for the reply.
    """
    return hashlib.blake2b(b"%d" % sequence.indices[0], key=sequence.request.record.reply_key, digest_size=16).digest()


def _destination(sequence: SequenceBlock) -> Destination:
    return sequence.request.address.topic, sequence.request.address.partition
