"""Chunks of a long text: spans of its characters that each have few enough tokens. Pure: the caller tokenizes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from penstock.engine.types import ModelInfo
from penstock.producer.errors import InvalidRequest, TooLong, UnsupportedTask, WrongArgument
from penstock.producer.wire.plain_rows import PlainRow
from penstock.worker.routes.settings import RouteSettings
from penstock.worker.routes.text_units import TextUnits

MAX_CHUNK_CHARACTERS = 1 << 16  # of a text whose tokens are long: no chunk is too long for the tokenizer
_MOST_AT_ONCE = 64  # chunks between two counts
_TASKS = ("embed", "embed_sparse", "classify")  # whose results are of a text, and not of places in it


class ChunkSize(NamedTuple):
    """The bounds of chunks, in tokens."""

    max_tokens: int  # with special tokens and the model's prompt
    overlap: int  # most tokens that a chunk has in common with the one before it


def chunk_size(settings: RouteSettings, task: str, info: ModelInfo) -> ChunkSize | None:
    """Of a route's chunks; None: its texts are not cut.

    Raises:
        UnsupportedTask: the task's results cannot be of chunks.
        WrongArgument: the model does not take so many tokens.
    """
    if settings.chunk_tokens is None:
        return None
    if task not in _TASKS or "labels" in settings.request_options:
        raise UnsupportedTask(f"chunk_tokens is for {', '.join(_TASKS)} without the option labels.")
    if settings.chunk_tokens > info.max_tokens:
        raise WrongArgument(
            f"chunk_tokens must be at most {info.max_tokens}, the longest input of {info.name!r}. "
            f"Given: {settings.chunk_tokens}"
        )
    return ChunkSize(settings.chunk_tokens, settings.chunk_overlap)


def of_chunk(span: tuple[int, int], row: PlainRow) -> dict[str, PlainRow]:
    """The result of a chunk, with its place. A vector is its `embedding`."""
    start, end = span
    return {"start": start, "end": end, **(row if isinstance(row, dict) else {"embedding": row})}


def of_chunk_record(number: int, num_chunks: int, text: str, chunk: dict[str, PlainRow]) -> PlainRow:
    """The result of a chunk that is a record of its own: which of how many it is, and its text."""
    return {"chunk": number, "chunks": num_chunks, "text": text, **chunk}


class Span(NamedTuple):
    """A chunk's first character, and the one after its last."""

    start: int
    end: int


class _Chunk(NamedTuple):
    first: int  # unit
    end: int  # unit after its last
    span: Span


class Splitting:
    """One text on its way to chunks. Whoever has it asks for proposals, counts their tokens, and tells the counts.

    Tokens of a text in its place may be fewer than those of the same text alone: "able" is one token, and the end of
    "unbelievable" another. So every chunk is counted as the model will be given it, and one that is too long is made
    shorter. The chunks cover all characters but spaces, their starts and ends increase, and they begin and end with no
    space.
    """

    def __init__(self, text: str, units: TextUnits, size: ChunkSize, room: int, max_chunks: int) -> None:
        """`room`: tokens of a chunk without special ones and the prompt, more than the overlap."""
        self._text, self._units, self._size = text, units, size
        self._room = self._limit = room
        self._max_chunks = max_chunks
        self._most = _MOST_AT_ONCE
        self._done: list[_Chunk] = []
        self._proposed: list[_Chunk] = []

    @property
    def spans(self) -> Sequence[Span]:
        """The chunks so far. A text of nothing but spaces has an empty one."""
        return [chunk.span for chunk in self._done] if self._units.num else [Span(0, 0)]

    def propose(self) -> Sequence[str]:
        """The texts of the next chunks, whose tokens are to be counted; none: all are there."""
        last = self._done[-1] if self._done else None
        limit = self._limit
        self._proposed = []
        while len(self._proposed) < self._most and (last.end if last else 0) < self._units.num:
            last = self._next(last, limit)
            limit = self._room
            self._proposed.append(last)
        return [self._text[chunk.span.start : chunk.span.end] for chunk in self._proposed]

    def accept(self, counts: Sequence[int]) -> None:
        """The tokens of the proposed chunks, with special ones. Those up to the first that is too long are kept.

        Raises:
            TooLong: what cannot be cut has more tokens than a chunk.
            InvalidRequest: there are more chunks than a record may have.
        """
        most = self._size.max_tokens
        fitting = next((index for index, count in enumerate(counts) if count > most), len(counts))
        self._done += self._proposed[:fitting]
        if len(self._done) > self._max_chunks:
            raise InvalidRequest(f"A text may have at most {self._max_chunks:,} chunks (max_sequences). It has more.")
        if fitting == len(counts):
            self._limit, self._most = self._room, min(2 * self._most, _MOST_AT_ONCE)
            return
        self._most = max(1, fitting)
        self._room = max(1, self._room - 1)  # some tokenizers begin every text with a token more
        self._limit = self._shorter(self._proposed[fitting], counts[fitting] - most)

    def _shorter(self, chunk: _Chunk, excess: int) -> int:
        """The limit for a chunk that has so many tokens too many."""
        if chunk.end - chunk.first == 1:
            raise TooLong(
                f"Characters {chunk.span.start} to {chunk.span.end} of the text cannot be cut between tokens, and have "
                f"{excess} tokens more than a chunk."
            )
        before = self._units.before
        return max(1, int(before[chunk.end] - before[chunk.first]) - excess)

    def _next(self, last: _Chunk | None, limit: int) -> _Chunk:
        reached = last.end if last else 0
        first = self._first_after(last) if last else 0
        end = self._end(first, reached, limit)
        if end <= reached:
            first, end = reached, self._end(reached, reached, limit)
        start, stop = int(self._units.starts[first]), int(self._units.starts[end])
        start += (stop - start) - len(self._text[start:stop].lstrip())
        return _Chunk(first, end, Span(start, start + len(self._text[start:stop].rstrip())))

    def _first_after(self, last: _Chunk) -> int:
        """The first unit of the next chunk: of those that may overlap, the first that begins a sentence, or a word."""
        units = self._units
        lowest = int(np.searchsorted(units.before, units.before[last.end] - self._size.overlap))
        lowest = max(lowest, int(np.searchsorted(units.starts, last.span.start, "right")))
        if lowest >= last.end:
            return last.end
        return lowest + int(np.argmax(units.ranks[lowest : last.end]))

    def _end(self, first: int, reached: int, limit: int) -> int:
        """The end of a chunk: the last that fits of the best near there, beyond what is reached already."""
        before, starts, ranks = self._units.before, self._units.starts, self._units.ranks
        by_tokens = int(np.searchsorted(before, before[first] + limit, "right")) - 1
        by_characters = int(np.searchsorted(starts, starts[first] + MAX_CHUNK_CHARACTERS, "right")) - 1
        last = max(min(by_tokens, by_characters), first + 1)
        near = int(np.searchsorted(before, before[first] + limit // 2))  # a chunk is as short as that for a good end
        lowest = max(near, reached + 1, first + 1)
        if last == self._units.num or lowest >= last:
            return last
        return last - int(np.argmax(ranks[lowest : last + 1][::-1]))
