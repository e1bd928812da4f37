"""Where each buffer of one batch lies: planned anew for every batch, in microseconds."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from penstock.engine.memory.check import check_slots
from penstock.engine.memory.greedy import place_greedily
from penstock.engine.memory.lifetimes import Lifetime, aligned

CHUNK_BYTES = 2 << 20  # chunks are multiples of it: the page size of device memory
K_SCALE = 1.2  # a further chunk is this much larger than what did not fit, so that slow growth stays rare

# The batch whose plan says which buffers may share a slot. Any batch would be safe; this one is typical.
_REFERENCE_TOKENS, _REFERENCE_SEQUENCES = 4096, 64


@dataclass(frozen=True, slots=True)
class Plan:
    """One batch's memory. Slot s is `slot_bytes[s]` bytes at `slot_offset[s]` of chunk `slot_chunk[s]`."""

    tokens: int
    sequences: int
    slot_of: Sequence[int]  # slot of each buffer; buffers of one slot have one size and never live at the same time
    slot_chunk: Sequence[int]
    slot_offset: Sequence[int]  # multiples of ALIGNMENT
    slot_bytes: Sequence[int]  # multiples of ALIGNMENT
    chunk_bytes: tuple[int, ...]  # of all chunks: those that were there, and perhaps one more that the arena must add
    used_bytes: int  # sum over the chunks of the highest byte used
    lower_bound_bytes: int  # the most bytes alive at one step: no plan uses fewer

    @property
    def offsets(self) -> tuple[tuple[int, int], ...]:
        """Chunk and offset of each buffer. For tests and reports; the arena works by slot."""
        return tuple((self.slot_chunk[slot], self.slot_offset[slot]) for slot in self.slot_of)


class Planner:
    """Plans for one model. Call it from one thread.

    Algorithm 1 is quadratic in the number of buffers, so it first runs once, at a typical size, over all of them. Buffers of
    equal size formula that it put at the same place never meet; they become one slot, and every batch's plan runs over
    the slots: some 8 where a 12-layer encoder has 90 buffers, for layers repeat. (The paper plans one layer and reuses it for
    the others; this needs no notion of a layer.) Sizes are exact for the batch, and two slots conflict if any two
    of their buffers meet, so every plan is sound whatever the typical size was.
    """

    def __init__(self, lifetimes: Sequence[Lifetime], *, cached_plans: int = 1024) -> None:
        if not lifetimes:
            raise ValueError("There is nothing to plan: the tape is empty. This is a bug.")
        self._slot_of, self._slots = _share_slots(lifetimes)
        self._conflicts = _slot_conflicts(lifetimes, self._slot_of)
        self._formulas, self._peaks = _peaks(lifetimes)
        self._formula_of_slot = [self._formulas.index(_formula(slot)) for slot in self._slots]
        self.plan = lru_cache(maxsize=cached_plans)(self._plan)

    def _plan(self, tokens: int, sequences: int, chunks: tuple[int, ...] = ()) -> Plan:
        """The plan for `sequences` sequences of `tokens` tokens in all, into chunks of the given bytes.

        Called once a batch, through the bounded cache `plan`, with the arena's `chunk_bytes`.
        """
        if not 1 <= sequences <= tokens:
            raise ValueError(f"A batch of {sequences} sequences with {tokens} tokens. This is a bug.")
        formula_bytes = [aligned(a * tokens + b * sequences + c) for a, b, c in self._formulas]
        slot_bytes = [formula_bytes[formula] for formula in self._formula_of_slot]
        placement = place_greedily(slot_bytes, self._conflicts, chunks)
        plan = Plan(
            tokens=tokens,
            sequences=sequences,
            slot_of=self._slot_of,
            slot_chunk=placement.chunk,
            slot_offset=placement.offset,
            slot_bytes=slot_bytes,
            chunk_bytes=_grown(chunks, placement.extents[-1]),
            used_bytes=sum(placement.extents),
            lower_bound_bytes=max(
                sum(map(int.__mul__, counts, formula_bytes)) for counts in self._peaks
            ),
        )
        check_slots(plan, self._conflicts)
        return plan
