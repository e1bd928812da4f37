"""Buffer lifetimes of BERT-like encoders, and a proof that a plan is sound, which shares no code with the planner."""

from collections.abc import Sequence
from itertools import pairwise

from penstock.engine.memory import BufferId, Lifetime, MemoryPlan, Tape
from penstock.engine.memory.lifetimes import ALIGNMENT

_BYTES = 2  # of a float16


def encoder_lifetimes(*, num_layers: int, hidden: int, intermediate: int, gated: bool = False) -> tuple[Lifetime, ...]:
    """The tape of an encoder in float16. Only an activation that is not gated works in place."""
    tape = Tape()

    def operation(name: str, width: int, *inputs: BufferId) -> BufferId:
        output = tape.allocate(_BYTES * width, name)
        for buffer in inputs:
            tape.use(buffer)
        tape.step()
        return output

    x = operation("embeddings", hidden)
    for layer in range(num_layers):
        qkv = operation(f"qkv {layer}", 3 * hidden, x)
        context = operation(f"context {layer}", hidden, qkv)
        projected = operation(f"projected {layer}", hidden, context)
        attended = operation(f"attended {layer}", hidden, projected, x)
        up = operation(f"up {layer}", intermediate * (2 if gated else 1), attended)
        activated = operation(f"activated {layer}", intermediate, up) if gated else up
        down = operation(f"down {layer}", hidden, activated)
        x = operation(f"output {layer}", hidden, down, attended)
    tape.use(x)
    return tape.lifetimes()


def check_no_overlap(lifetimes: Sequence[Lifetime], plan: MemoryPlan) -> None:
    """RuntimeError if the plan is unsound: an overlap at some step, or a buffer too small, unaligned or outside.

    Looks at every step on its own.
    """
    for lifetime, region, (chunk, offset) in zip(lifetimes, plan.region_of, plan.offsets, strict=True):
        if plan.region_bytes[region] < lifetime.num_bytes(plan.tokens):
            raise RuntimeError(f"Buffer {lifetime.name!r} has too few bytes. This is a bug.")
        if offset % ALIGNMENT or offset < 0 or offset + plan.region_bytes[region] > plan.chunk_bytes[chunk]:
            raise RuntimeError(f"Buffer {lifetime.name!r} lies unaligned or outside its chunk. This is a bug.")
    for step in range(1 + max(lifetime.last for lifetime in lifetimes)):
        _check_step(step, lifetimes, plan)


def _check_step(step: int, lifetimes: Sequence[Lifetime], plan: MemoryPlan) -> None:
    places = plan.offsets
    alive = [index for index, lifetime in enumerate(lifetimes) if lifetime.first <= step <= lifetime.last]
    alive.sort(key=places.__getitem__)
    for below, above in pairwise(alive):
        (chunk, offset), (next_chunk, next_offset) = places[below], places[above]
        if chunk == next_chunk and offset + plan.region_bytes[plan.region_of[below]] > next_offset:
            names = f"{lifetimes[below].name!r} and {lifetimes[above].name!r}"
            raise RuntimeError(f"Buffers {names} overlap at step {step}. This is a bug.")
