"""Requests of routes whose texts become chunks: the tokenizer's part of it, beside the event loop."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice

from penstock.producer.errors import BackendError, PenstockError, TooLong, WrongArgument
from penstock.producer.tokenization import Encoded, Tokenizer
from penstock.producer.wire.messages import Options, Request
from penstock.worker.requests.request import PendingRequest, Rejection
from penstock.worker.routes.chunks import ChunkSize, Splitting
from penstock.worker.routes.text_units import PieceUnits, TextUnits, pieces_of

MAX_CHARACTERS = 1 << 23  # of a text: as many as 4096 chunks of 512 tokens have, and ten seconds of a tokenizer
_FEW_PIECES = 8  # whose units are joined in less time than a thread takes

Asked = tuple[PendingRequest, ChunkSize]
Check = Callable[[Request, bool], Request]  # of a request, and whether its results are written as JSON


class Chunker:
    """Called on the event loop. Texts are tokenized by `Tokenizer.encode_async`: long ones in its thread, in turns."""

    def __init__(self, tokenizer: Tokenizer, check: Check, max_chunks: int) -> None:
        """`check`: see `Router`. `max_chunks`: of a record."""
        self._tokenizer = tokenizer
        self._check = check
        self._max_chunks = max_chunks
        self._rooms: dict[tuple[Options, ChunkSize], int] = {}  # of the routes

    def require_room(self, message: Request, size: ChunkSize) -> None:
        """Raise WrongArgument where special tokens and the prompt of a route's requests leave no room for a chunk."""
        room = self._room(message, size)
        if room <= size.overlap:
            raise WrongArgument(
                f"chunk_tokens must be more than chunk_overlap and the {size.max_tokens - room} special tokens and "
                "tokens of the prompt that each chunk has."
            )

    def _room(self, message: Request, size: ChunkSize) -> int:
        known = message.options, size
        if known not in self._rooms:
            [empty] = self._tokenizer.encode(self._prompted(message, [""]), truncate=False)
            self._rooms[known] = size.max_tokens - len(empty.ids)
        return self._rooms[known]

    async def split(self, asked: Sequence[Asked]) -> tuple[list[PendingRequest], list[Rejection]]:
        """Requests of one text each become requests of its chunks, checked, with the model's prompt."""
        try:
            return await self._split(asked), []
        except PenstockError as error:
            if len(asked) == 1:
                return [], [asked[0][0].reject(error)]
        both = [await self.split([one]) for one in asked]  # only the culprit fails
        return [one for found, _ in both for one in found], [one for _, rejected in both for one in rejected]

    async def _split(self, asked: Sequence[Asked]) -> list[PendingRequest]:
        units = await self._units([_text_of(request) for request, _ in asked])
        splittings = [
            Splitting(_text_of(request), own, size, self._room(request.message, size), self._max_chunks)
            for (request, size), own in zip(asked, units, strict=True)
        ]
        while any(proposed := [splitting.propose() for splitting in splittings]):
            texts = [
                text
                for (request, _), own in zip(asked, proposed, strict=True)
                for text in self._prompted(request.message, own)
            ]
            await asyncio.sleep(0)  # short texts are tokenized at once, and there may be many rounds of them
            counts = iter([len(one.ids) for one in await self._encode(texts, spans=False)])
            for splitting, own in zip(splittings, proposed, strict=True):
                splitting.accept(list(islice(counts, len(own))))
        return [self._chunked(request, splitting) for (request, _), splitting in zip(asked, splittings, strict=True)]

    async def _units(self, texts: Sequence[str]) -> list[TextUnits]:
        longest = max(map(len, texts))
        if longest > MAX_CHARACTERS:
            raise TooLong(f"A text must have at most {MAX_CHARACTERS:,} characters. Given: {longest:,}")
        pieces = [list(pieces_of(text)) for text in texts]
        encoded = iter(await self._encode([piece.text for own in pieces for piece in own], spans=True))
        units = []
        for text, own in zip(texts, pieces, strict=True):
            parts: list[PieceUnits] = []
            for piece, found in zip(own, islice(encoded, len(own)), strict=True):
                if found.spans is None:
                    raise RuntimeError("The tokenizer gave no spans. This is a bug.")
                if parts:
                    await asyncio.sleep(0)
                parts.append(PieceUnits.of(piece, found.spans, parts[-1] if parts else None))
            join = TextUnits.join
            is_short = len(parts) <= _FEW_PIECES
            units.append(join(parts, len(text)) if is_short else await asyncio.to_thread(join, parts, len(text)))
        return units

    async def _encode(self, texts: Sequence[str], *, spans: bool) -> list[Encoded]:
        try:
            return await self._tokenizer.encode_async(texts, truncate=False, spans=spans)
        except PenstockError:
            raise
        except Exception as problem:
            raise BackendError(f"The tokenizer failed on this text. Raised: {problem!r}"[:500]) from problem

    def _prompted(self, message: Request, texts: Sequence[str]) -> Sequence[str]:
        """The texts that the model is given for these."""
        prompted = self._tokenizer.prompts.apply(replace(message, text=tuple(texts)))
        return prompted.text  # type: ignore[return-value]  # no pairs

    def _chunked(self, request: PendingRequest, splitting: Splitting) -> PendingRequest:
        text, spans = _text_of(request), splitting.spans
        texts = tuple([text[start:end] for start, end in spans])
        message = self._check(replace(request.message, text=texts), request.address.is_json)
        chunked = PendingRequest(
            request.record, request.address, message, request.deadline, request.bulk, request.times
        )
        chunked.note_chunks(spans)
        return chunked


def _text_of(request: PendingRequest) -> str:
    [text] = request.message.text or ()
    if not isinstance(text, str):
        raise RuntimeError("A pair of texts has no chunks. This is a bug.")
    return text
