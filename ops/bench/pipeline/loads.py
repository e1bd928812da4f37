"""Loads that client processes offer together: plain data, JSON between processes."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

ROWS = 64  # sequences of a list, and of a full record
SHORT, LONG = (2, 100), (5, 500)

Payload = Literal["ids", "texts"]


@dataclass(frozen=True, slots=True)
class Load:
    """One load of every client process. Only what falls into the measured seconds counts."""

    name: str
    payload: Payload
    low: int  # token ids, or words, of a sequence; uniform, both inclusive
    high: int
    rows: int = 1  # sequences of one call
    callers: int = 0  # of each client process, each with one call at a time; 0: an open loop
    rate_per_s: float = 0.0  # open loop: sequences a second of all clients together, Poisson
    batch_calls: bool = True  # concurrent calls may share a record
    timeout_s: float = 30.0
    warm_s: float = 2.0
    seconds: float = 4.0

    @property
    def is_open(self) -> bool:
        return self.callers == 0

    @property
    def span_s(self) -> float:
        """From the start to the end of the measured seconds."""
        return self.warm_s + self.seconds


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes of the loads for one kind of device: enough in flight to keep it busy, and rates within its reach."""

    short_lists: int  # callers of a client process, with lists of SHORT sequences
    long_lists: int
    singles: int  # callers with one sequence
    rates_per_s: Sequence[float]
    deadline_s: float  # of requests under overload
    alone_short: int  # requests of a pass through the engine alone
    alone_long: int
    st_batches: Sequence[int]  # batch sizes that SentenceTransformer.encode tries


SCALES: Mapping[str, Scale] = {
    "cuda": Scale(24, 12, 1024, (1000, 8000, 10_000, 25_000), 0.2, 16_384, 4096, (64, 128, 256, 512)),
    "cpu": Scale(6, 4, 256, (50, 200), 2.0, 256, 64, (32, 64)),
    "null": Scale(24, 24, 1024, (1000,), 0.2, 0, 0, ()),
}


def closed_loads(scale: Scale, warm_s: float, seconds: float, *, max_tokens: int, texts: bool) -> list[Load]:
    """Loads that saturate a fleet, in the order of the table; none with sequences that the model does not take.

    `texts`: the model has a tokenizer.
    """
    (short, short_end), (long, long_end) = SHORT, LONG
    loads = [
        Load("ids 2-100", "ids", short, short_end, ROWS, scale.short_lists),
        Load("ids 5-500", "ids", long, long_end, ROWS, scale.long_lists),
        Load("shared calls", "ids", short, short_end, 1, scale.singles),
        Load("a record each", "ids", short, short_end, 1, scale.singles, batch_calls=False),
    ]
    if texts:
        loads += [
            Load("texts 2-100", "texts", short, short_end, ROWS, scale.short_lists),
            Load("texts 5-500", "texts", long, long_end, ROWS, scale.long_lists),
        ]
    taken = [load for load in loads if load.high + special_tokens(load.payload) <= max_tokens]
    return [dataclasses.replace(load, warm_s=warm_s, seconds=seconds) for load in taken]


def special_tokens(payload: Payload) -> int:
    """Number of tokens that a tokenizer adds to a text."""
    return 2 if payload == "texts" else 0


def open_load(rate_per_s: float, warm_s: float, seconds: float) -> Load:
    """Calls of one sequence at a given rate. What is not answered in five seconds has failed."""
    low, high = SHORT
    return Load(
        f"{rate_per_s:,.0f}/s",
        "ids",
        low,
        high,
        1,
        rate_per_s=rate_per_s,
        timeout_s=5.0,
        warm_s=warm_s,
        seconds=seconds,
    )
