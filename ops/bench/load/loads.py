"""Loads that client processes offer together: plain data, JSON between processes."""

from dataclasses import dataclass
from typing import Literal

ROWS = 64  # sequences of a list, and of a full record
SHORT, LONG = (2, 100), (5, 500)

Payload = Literal["ids", "texts", "banking77"]


@dataclass(frozen=True, slots=True)
class Load:
    """One load of every client process. Only what falls into the measured seconds counts."""

    name: str
    payload: Payload
    low: int = 0  # token ids, or words, of a sequence; uniform, both inclusive; Banking77's texts are as they are
    high: int = 0
    rows: int = 1  # sequences of one call
    callers: int = 0  # of each client process, each with one call at a time; 0: an open loop
    rate_per_s: float = 0.0  # open loop: sequences a second of all clients together, Poisson
    batch_calls: bool = True  # concurrent calls may share a record
    poison_every: int = 0  # of Banking77's texts; 0: none is poison
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


def special_tokens(payload: Payload) -> int:
    """Number of tokens that a tokenizer adds to a text."""
    return 2 if payload == "texts" else 0


def open_load(rate_per_s: float, warm_s: float, seconds: float) -> Load:
    """Calls of one sequence at a given rate. What is not answered in five seconds has failed."""
    name = f"{rate_per_s:,.0f}/s"
    return Load(name, "ids", *SHORT, rate_per_s=rate_per_s, timeout_s=5.0, warm_s=warm_s, seconds=seconds)
