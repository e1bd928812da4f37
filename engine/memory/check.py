"""Two proofs that no two live buffers overlap: a full one from the lifetimes, and a cheap one for every new plan."""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import pairwise
from typing import TYPE_CHECKING

from penstock.engine.memory.lifetimes import ALIGNMENT, Lifetime

if TYPE_CHECKING:
    from penstock.engine.memory.plan import Plan


def check_slots(plan: Plan, conflicts: Sequence[Set[int]]) -> None:
    """RuntimeError if two slots that conflict overlap. Some 5 µs; the planner runs it on every plan it computes."""
    chunk, offset = plan.slot_chunk, plan.slot_offset
    ends = [start + num_bytes for start, num_bytes in zip(offset, plan.slot_bytes, strict=True)]
    for slot, others in enumerate(conflicts):
        for other in others:
            if offset[slot] < ends[other] and offset[other] < ends[slot] and chunk[other] == chunk[slot]:
                raise RuntimeError(f"Slots {other} and {slot} overlap in a memory plan. This is a bug.")


def check_no_overlap(lifetimes: Sequence[Lifetime], plan: Plan) -> None:
    """RuntimeError if the plan is unsound: an overlap at some step, or a buffer too small, unaligned or outside.

    Looks at every step on its own and shares no code with the planner. For tests and for doubts.
    """
    for lifetime, slot, (chunk, offset) in zip(lifetimes, plan.slot_of, plan.offsets, strict=True):
        if plan.slot_bytes[slot] < lifetime.num_bytes(plan.tokens, plan.sequences):
            raise RuntimeError(f"Buffer {lifetime.name!r} has too few bytes. This is a bug.")
        if offset % ALIGNMENT or offset < 0 or offset + plan.slot_bytes[slot] > plan.chunk_bytes[chunk]:
            raise RuntimeError(f"Buffer {lifetime.name!r} lies unaligned or outside its chunk. This is a bug.")
    for step in range(1 + max(lifetime.last for lifetime in lifetimes)):
        _check_step(step, lifetimes, plan)


def _check_step(step: int, lifetimes: Sequence[Lifetime], plan: Plan) -> None:
    places = plan.offsets
    alive = [index for index, lifetime in enumerate(lifetimes) if lifetime.first <= step <= lifetime.last]
    alive.sort(key=places.__getitem__)
    for below, above in pairwise(alive):
        (chunk, offset), (next_chunk, next_offset) = places[below], places[above]
        if chunk == next_chunk and offset + plan.slot_bytes[plan.slot_of[below]] > next_offset:
            names = f"{lifetimes[below].name!r} and {lifetimes[above].name!r}"
            raise RuntimeError(f"Buffers {names} overlap at step {step}. This is a bug.")
