"""Calls of the Python client, and the check of what each of them returned."""

import asyncio
from collections import Counter
from typing import Any

import numpy as np

from penstock.engine.types import Float32Array
from penstock.ops.chaos.load.asked import Ids
from penstock.ops.chaos.load.sequence_mix import SequenceMix
from penstock.producer import Client
from penstock.producer.errors import PenstockError
from penstock.producer.keywords import IsolationLevel

REPLIES = "penstock.replies"
CALL_S = 180.0  # longer than any fault
_PAUSE_S = 0.05  # of a caller between two calls: on a fast machine the calls are not to crowd out the records
_SEED_STEP = 1_000_003
_LATE = frozenset({"expired", "overloaded"})  # errors of any call


class Calls:
    """Callers that each make one call after another. `seed` decides the calls, but not when they are made."""

    def __init__(self, servers: str, model: str, isolation: IsolationLevel, num_callers: int, seed: int) -> None:
        """`isolation`: how the clients read."""
        self.results: list[tuple[Ids, Float32Array]] = []
        self.errors: Counter[str] = Counter()
        self.wrong_errors: list[str] = []  # that their calls did not deserve
        connection: Any = {"bootstrap_servers": servers, "model": model, "isolation_level": isolation}
        self._clients = [Client(batch_calls=share, timeout_s=CALL_S, **connection) for share in (True, False)]
        self._callers = [SequenceMix(seed + _SEED_STEP * (1 + number)) for number in range(num_callers)]

    async def run(self, is_over: asyncio.Event) -> None:
        """Call until `is_over`. Returns when every call has ended."""
        async with self._clients[0], self._clients[1], asyncio.TaskGroup() as group:
            for number, sequences in enumerate(self._callers):
                group.create_task(self._call(self._clients[number % 2], sequences, is_over))

    async def _call(self, client: Client, sequences: SequenceMix, is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            chosen = [sequences.take() for _ in range(sequences.random.choice((1, 1, 1, 4)))]
            has_poison = any(is_poison for _, is_poison in chosen)
            try:
                rows = await client.embed(ids=[np.frombuffer(ids, "<u4") for ids, _ in chosen])
            except PenstockError as error:
                self.errors[error.code] += 1
                if error.code not in _LATE and not (has_poison and error.code == "backend"):
                    self.wrong_errors.append(f"a call of {chosen} got {error!r}")
            else:
                self.results += zip([ids for ids, _ in chosen], rows, strict=True)
                if has_poison:
                    self.wrong_errors.append(f"a call of poison was answered: {chosen}")
            await asyncio.sleep(_PAUSE_S)
