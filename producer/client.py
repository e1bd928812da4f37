"""The async client: texts or token ids in, vectors or labels out.

async with Client(bootstrap_servers="localhost:9092", model="all-MiniLM-L6-v2") as client:
    vectors = await client.embed(["a text", "another"])
"""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from penstock.producer.errors import EmptyInput, InvalidRequest, PenstockError
from penstock.producer.exchange import Exchange
from penstock.producer.messages import Classification, Options, Reply, Request, Text, join_tokens
from penstock.producer.settings import ClientSettings
from penstock.producer.tokenization import Tokenizer

Vector = npt.NDArray[np.floating[Any]]
Row = Vector | Classification
Sequences = Sequence[Text] | Sequence[npt.ArrayLike]

_RECORD_BYTES = 256 * 1024  # records of long sequences are split well below the broker's usual 1 MiB
_LONGEST_S = 10 * 365 * 86400.0  # a deadline that the wire can carry


class Client:
    """Requests to one model. Use as an async context manager, from one event loop; calls may run concurrently.

    Every method raises from the tree of `penstock.producer.errors`. After `close`, pending and later calls fail with
    `ShuttingDown`; a call never outlives its deadline (`timeout_s`, sent along with it) by more than a moment.
    """

    def __init__(self, *, tokenizer: str | Path | None = None, **settings: Any) -> None:
        """`settings` are the fields of `ClientSettings` (model=…, bootstrap_servers=…); the rest comes from PENSTOCK_*.

        `tokenizer` is a checkpoint directory: texts are then tokenized here, in threads, and not by the worker.
        """
        self._settings = ClientSettings(**settings)
        self._exchange = Exchange(self._settings)
        self._tokenizer = Tokenizer.from_directory(tokenizer) if tokenizer is not None else None

    async def start(self) -> None:
        """Connect; waits for the broker, logging, as long as it takes."""
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
        timeout_s: float | None = None,
    ) -> Vector:
        """Vectors of texts, or of sequences of token ids (special tokens included).

        Returns:
            [n, dim]; for a single text (not in a list) [dim]. Many texts are split over several records.

        Raises:
            PenstockError: the first sequence's error; use `map` to get the others' results beside it.
        """
        sequences = _sequences([texts] if isinstance(texts, str) else texts, ids)
        options = Options(pooling, normalize, truncate, dtype=dtype)
        if self._fit_one_record(sequences):
            reply = await self._ask("embed", sequences, options, self._deadline(timeout_s))
            vectors = _vectors(reply)
        else:
            vectors = np.stack(await self._all("embed", sequences, options, timeout_s))
        return vectors[0] if isinstance(texts, str) else vectors

    async def classify(
        self,
        texts: str | Sequence[Text] | None = None,
        *,
        ids: Sequence[npt.ArrayLike] | None = None,
        top_k: int = 1,
        truncate: bool = False,
        timeout_s: float | None = None,
    ) -> list[Classification]:
        """The best `top_k` labels (0: all) of each text or sequence of token ids, in order; a lone text gives one row.

        Raises:
            PenstockError: the first sequence's error; use `map` to get the others' results beside it.
        """
        sequences = _sequences([texts] if isinstance(texts, str) else texts, ids)
        options = Options(truncate=truncate, top_k=top_k)
        if self._fit_one_record(sequences):
            reply = await self._ask("classify", sequences, options, self._deadline(timeout_s))
            return list(_classes(reply))
        return await self._all("classify", sequences, options, timeout_s)

    async def map(
        self,
        task: str,
        texts: Sequence[Text] | None = None,
        *,
        ids: Sequence[npt.ArrayLike] | None = None,
        options: Options | None = None,
        timeout_s: float | None = None,
    ) -> list[Row | PenstockError]:
        """One result a sequence, in order: its row, or the error that is its own and nobody else's.

        Sequences at fault are taken out of their record and the others sent again; refusals that are retriable are
        tried again until the deadline.
        """
        sequences = _sequences(texts, ids, may_be_empty=True)
        results: list[Row | PenstockError] = [_PENDING] * len(sequences)
        deadline = self._deadline(timeout_s)
        async with asyncio.TaskGroup() as group:
            for chunk in _split(sequences, self._settings.sequences_per_record):
                group.create_task(self._fill(results, chunk, task, sequences, options or Options(), deadline))
        return results

    async def request(self, request: Request, *, timeout_s: float | None = None) -> Reply:
        """Send one record and await its answer: the call beneath all others.

        Raises:
            PenstockError: what the worker answered, `Expired` after the deadline, or `ShuttingDown`.
        """
        return await self._exchange.ask(request, self._deadline(timeout_s))

    def _deadline(self, timeout_s: float | None) -> float:
        return time.time() + min(self._settings.timeout_s if timeout_s is None else timeout_s, _LONGEST_S)

    def _fit_one_record(self, sequences: Sequences) -> bool:
        if len(sequences) > self._settings.sequences_per_record:
            return False
        return len(sequences) == 1 or sum([_size(sequence) for sequence in sequences]) <= _RECORD_BYTES

    async def _all(self, task: str, sequences: Sequences, options: Options, timeout_s: float | None) -> list[Any]:
        """Every row, over several records, or the first error."""
        are_texts = isinstance(sequences[0], str | tuple)
        texts, ids = (sequences, None) if are_texts else (None, sequences)
        rows = await self.map(task, texts, ids=ids, options=options, timeout_s=timeout_s)  # type: ignore[arg-type]  # told apart above
        for row in rows:
            if isinstance(row, PenstockError):
                raise row
        return rows

    async def _fill(
        self,
        results: list[Row | PenstockError],
        chunk: list[int],
        task: str,
        sequences: Sequences,
        options: Options,
        deadline: float,
    ) -> None:
        """Fill `results` at the indices of `chunk`, sending until each has its row or its own error."""
        for index in chunk:
            if _is_blank(sequences[index]):
                # Every worker would refuse it; found here, it costs its record no second trip.
                results[index] = EmptyInput(f"Sequence {index} is empty.")
        chunk = [index for index in chunk if results[index] is _PENDING]
        while chunk:
            try:
                reply = await self._ask(task, [sequences[index] for index in chunk], options, deadline)
            except PenstockError as error:
                culprits = {position: row for position, row in error.rows.items() if position in range(len(chunk))}
                culprits = culprits or dict.fromkeys(range(len(chunk)), error)
                for position, culprit in culprits.items():
                    results[chunk[position]] = culprit
                chunk = [index for position, index in enumerate(chunk) if position not in culprits]
            else:
                rows = _classes(reply) if reply.vectors is None else _vectors(reply)
                for index, row in zip(chunk, rows, strict=True):
                    results[index] = row
                return

    async def _ask(self, task: str, sequences: Sequence[Any], options: Options, deadline: float) -> Reply:
        """One record of these sequences, which are all texts or all token ids."""
        model = self._settings.model
        if not isinstance(sequences[0], str | tuple):
            request = Request(model, task, join_tokens(sequences), None, options)
        elif self._tokenizer is None or any(isinstance(text, tuple) for text in sequences):
            # Pairs need token types, which `ids` does not carry: the worker tokenizes them.
            request = Request(model, task, None, tuple(sequences), options)
        else:
            encoded = await self._tokenizer.encode_async(sequences, truncate=False)
            request = Request(model, task, join_tokens([sequence.ids for sequence in encoded]), None, options)
        return await self._exchange.ask(request, deadline)


_PENDING = PenstockError("No result was recorded for this sequence. This is a bug.")


def _sequences(
    texts: Sequence[Text] | None, ids: Sequence[npt.ArrayLike] | None, *, may_be_empty: bool = False
) -> Sequences:
    if (texts is None) == (ids is None):
        raise InvalidRequest("Give exactly one of `texts` and `ids`.")
    if texts is not None and (isinstance(texts, str) or not all(isinstance(text, str | tuple) for text in texts)):
        raise InvalidRequest("`texts` must be a list of strings, or of pairs of strings.")
    sequences = ids if texts is None else texts
    if sequences is None or (len(sequences) == 0 and not may_be_empty):
        raise EmptyInput("There is nothing to send: give at least one text, or one sequence of token ids.")
    return sequences


def _vectors(reply: Reply) -> Vector:
    if reply.vectors is None:
        raise InvalidRequest("The worker answered with labels where vectors were asked for.")
    return reply.vectors


def _classes(reply: Reply) -> tuple[Classification, ...]:
    if reply.classes is None:
        raise InvalidRequest("The worker answered with vectors where labels were asked for.")
    return reply.classes


def _split(sequences: Sequences, sequences_per_record: int) -> list[list[int]]:
    """Indices of the sequences, cut into records by count and by size of text."""
    chunks: list[list[int]] = []
    total = 0
    for index, sequence in enumerate(sequences):
        size = _size(sequence)
        if not chunks or len(chunks[-1]) == sequences_per_record or total + size > _RECORD_BYTES:
            chunks.append([])
            total = 0
        chunks[-1].append(index)
        total += size
    return chunks


def _size(sequence: Any) -> int:
    """Bytes of a sequence in its record, nearly."""
    if isinstance(sequence, str):
        return len(sequence) if sequence.isascii() else 4 * len(sequence)
    return sum([_size(part) for part in sequence]) if isinstance(sequence, tuple) else 4 * len(sequence)


def _is_blank(sequence: Any) -> bool:
    return not sequence.strip() if isinstance(sequence, str) else len(sequence) == 0
