"""Memory plans: the place of each buffer of a batch, computed for every batch in microseconds."""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import lru_cache

from penstock.engine.memory.greedy import place_greedily
from penstock.engine.memory.lifetimes import Lifetime, aligned

CHUNK_BYTES = 2 << 20  # chunks are multiples of it: the page size of device memory
K_SCALE = 1.2  # a further chunk has this much spare room, so that growth stays rare

# Buffers that share memory in this batch's plan share a region. Any batch would be correct; this one is typical.
_REFERENCE_TOKENS = 4096
_CACHED_PLANS = 1024


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """One batch's memory. Region r is `region_bytes[r]` bytes at `region_offset[r]` of chunk `region_chunk[r]`."""

    tokens: int
    region_of: Sequence[int]  # of each buffer; buffers of one region have one size and never live at the same time
    region_chunk: Sequence[int]
    region_offset: Sequence[int]  # multiples of ALIGNMENT
    region_bytes: Sequence[int]  # multiples of ALIGNMENT
    chunk_bytes: tuple[int, ...]  # of all chunks: those given, and perhaps one that the arena must add
    used_bytes: int  # sum over the chunks of the highest byte used
    lower_bound_bytes: int  # the most bytes alive at one step: no plan uses fewer

    @property
    def offsets(self) -> tuple[tuple[int, int], ...]:
        """Chunk and offset of each buffer."""
        return tuple((self.region_chunk[region], self.region_offset[region]) for region in self.region_of)


class MemoryPlanner:
    """Plans for one model. Called from one thread.

    Algorithm 1 is quadratic in the number of buffers, so it runs once over all of them, at a typical size. Buffers of
    one size and the same place are never alive together; they become one region, and each batch's plan is over regions.
    A 12-layer encoder has 7 regions for 86 buffers, for layers repeat. (The paper plans one layer and reuses that
    plan.) Two regions conflict if any two of their buffers are alive together, so every plan is sound.
    """

    def __init__(self, lifetimes: Sequence[Lifetime]) -> None:
        if not lifetimes:
            raise ValueError("There is nothing to plan: the tape is empty. This is a bug.")
        self._problem = _Problem(lifetimes, _shared_regions(lifetimes))
        self._cached_solve = lru_cache(maxsize=_CACHED_PLANS)(self._problem.solve)

    def plan(self, tokens: int, chunks: tuple[int, ...] = ()) -> MemoryPlan:
        """The plan for a batch of so many tokens, into chunks of the given bytes.

        Called once a batch, with the arena's `chunk_bytes`; the arena accepts the plan as long as these still hold.
        """
        return self._cached_solve(tokens, chunks)


def plan_each_buffer(lifetimes: Sequence[Lifetime], tokens: int, chunks: tuple[int, ...] = ()) -> MemoryPlan:
    """Algorithm 1 over single buffers, in milliseconds a batch: the origin of regions, and a reference for tests."""
    return _Problem(lifetimes, tuple(range(len(lifetimes)))).solve(tokens, chunks)


class _Problem:
    """The part of planning that does not depend on the batch: regions, their conflicts, and bounds of the peak."""

    def __init__(self, lifetimes: Sequence[Lifetime], region_of: Sequence[int]) -> None:
        sizes = [lifetime.bytes_per_token for lifetime in lifetimes]
        self._sizes = tuple(dict.fromkeys(sizes))  # bytes per token
        size_of_region = dict(zip(region_of, map(self._sizes.index, sizes), strict=True))
        self._size_of_region = [size_of_region[region] for region in range(len(size_of_region))]
        self._region_of = tuple(region_of)
        self._conflicts = _region_conflicts(lifetimes, region_of)
        self._peaks = _peaks(lifetimes, self._sizes)

    def solve(self, tokens: int, chunks: tuple[int, ...]) -> MemoryPlan:
        if tokens < 1:
            raise ValueError(f"A batch of {tokens} tokens. This is a bug.")
        num_bytes = [aligned(size * tokens) for size in self._sizes]
        region_bytes = [num_bytes[size] for size in self._size_of_region]
        placement = place_greedily(region_bytes, self._conflicts, chunks)
        plan = MemoryPlan(
            tokens=tokens,
            region_of=self._region_of,
            region_chunk=placement.chunk,
            region_offset=placement.offset,
            region_bytes=region_bytes,
            chunk_bytes=_grown(chunks, placement.extents[-1]),
            used_bytes=sum(placement.extents),
            lower_bound_bytes=max(sum(map(int.__mul__, counts, num_bytes)) for counts in self._peaks),
        )
        check_regions(plan, self._conflicts)
        return plan


def _shared_regions(lifetimes: Sequence[Lifetime]) -> tuple[int, ...]:
    """Region of each buffer: one region for each size and place in the plan of the reference batch."""
    plan = plan_each_buffer(lifetimes, _REFERENCE_TOKENS)
    regions: dict[tuple[int, int], int] = {}
    return tuple(
        regions.setdefault((lifetime.bytes_per_token, offset), len(regions))
        for lifetime, (_, offset) in zip(lifetimes, plan.offsets, strict=True)
    )


def _region_conflicts(lifetimes: Sequence[Lifetime], region_of: Sequence[int]) -> tuple[Set[int], ...]:
    """For each region, the others that hold a buffer alive at the same time as one of its own."""
    conflicts: list[set[int]] = [set() for _ in range(max(region_of) + 1)]
    alive: list[int] = []
    for buffer in sorted(range(len(lifetimes)), key=lambda index: lifetimes[index].first):
        alive = [other for other in alive if lifetimes[other].meets(lifetimes[buffer])]
        for other in alive:
            if region_of[other] == region_of[buffer]:
                names = lifetimes[other].name, lifetimes[buffer].name
                raise RuntimeError(f"Buffers {names} live at the same time in one region. This is a bug.")
            conflicts[region_of[other]].add(region_of[buffer])
            conflicts[region_of[buffer]].add(region_of[other])
        alive.append(buffer)
    return tuple(conflicts)


def check_regions(plan: MemoryPlan, conflicts: Sequence[Set[int]]) -> None:
    """RuntimeError if two regions that conflict overlap. Takes some 5 µs; runs on every new plan."""
    chunk, offset = plan.region_chunk, plan.region_offset
    ends = [start + num_bytes for start, num_bytes in zip(offset, plan.region_bytes, strict=True)]
    for region, others in enumerate(conflicts):
        for other in others:
            if offset[region] < ends[other] and offset[other] < ends[region] and chunk[other] == chunk[region]:
                raise RuntimeError(f"Regions {other} and {region} overlap in a memory plan. This is a bug.")


def _peaks(lifetimes: Sequence[Lifetime], sizes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Numbers of live buffers of each size, for the steps that can have the most bytes alive.

    Only steps where a buffer begins can. A step is left out if another has as many buffers of every size.
    """
    counts = set()
    for step in {lifetime.first for lifetime in lifetimes}:
        alive = [lifetime.bytes_per_token for lifetime in lifetimes if lifetime.first <= step <= lifetime.last]
        counts.add(tuple(map(alive.count, sizes)))
    return tuple(
        one for one in counts if not any(one != other and all(map(int.__le__, one, other)) for other in counts)
    )


def _grown(chunks: tuple[int, ...], missing_bytes: int) -> tuple[int, ...]:
    """The chunks, and one more for bytes that did not fit. The first is exact: warm-up places the largest batch."""
    if missing_bytes == 0:
        return chunks
    wanted = int(missing_bytes * K_SCALE) if chunks else missing_bytes
    return (*chunks, -(-wanted // CHUNK_BYTES) * CHUNK_BYTES)
