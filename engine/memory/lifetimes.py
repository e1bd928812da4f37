"""Lifetimes of the buffers of a forward pass, and their sizes as functions of the batch."""

from dataclasses import dataclass, replace
from typing import NewType

ALIGNMENT = 256  # bytes: cudaMalloc's, and enough for every vector load and TMA descriptor

BufferId = NewType("BufferId", int)  # index into `Tape.lifetimes()` and the per-buffer fields of a plan


def aligned(num_bytes: int) -> int:
    """`num_bytes` rounded up to ALIGNMENT."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Lifetime:
    """One buffer: alive from step `first` to step `last`, both inclusive; a step is one operation of the forward."""

    name: str
    first: int
    last: int
    bytes_per_token: int

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last:
            raise ValueError(f"Buffer {self.name!r} lives from step {self.first} to {self.last}. This is a bug.")
        if self.bytes_per_token <= 0:
            raise ValueError(f"Buffer {self.name!r} has no size. This is a bug.")

    def num_bytes(self, tokens: int) -> int:
        """Size in a batch of so many tokens: a multiple of ALIGNMENT."""
        return aligned(self.bytes_per_token * tokens)

    def meets(self, other: "Lifetime") -> bool:
        """Whether both are alive at some step and must not share memory."""
        return self.first <= other.last and other.first <= self.last


class Tape:
    """A record of one dry run of a forward pass, in the order of its launches.

    For each operation: `allocate` its new outputs, `use` every other buffer that it reads or writes, then `step`. A
    buffer lives from the step that allocated it to the last step that used it, so an operation's inputs and outputs
    never share memory. An operation in place uses one buffer again.
    """

    def __init__(self) -> None:
        self._lifetimes: list[Lifetime] = []
        self._now = 0

    def allocate(self, bytes_per_token: int, name: str) -> BufferId:
        """A new buffer of `bytes_per_token` for each token, alive from the current step."""
        self._lifetimes.append(Lifetime(name, self._now, self._now, bytes_per_token))
        return BufferId(len(self._lifetimes) - 1)

    def use(self, buffer_id: BufferId) -> None:
        """Note that the current step reads or writes the buffer."""
        if not 0 <= buffer_id < len(self._lifetimes):
            raise ValueError(f"Buffer {buffer_id} was never allocated on this tape. This is a bug.")
        self._lifetimes[buffer_id] = replace(self._lifetimes[buffer_id], last=self._now)

    def step(self) -> None:
        """End the current operation; the next one begins."""
        self._now += 1

    def lifetimes(self) -> tuple[Lifetime, ...]:
        """Lifetimes of all buffers; buffer i is at index i."""
        return tuple(self._lifetimes)
