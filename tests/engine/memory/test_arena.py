"""The arena: grows when it must, shrinks when told to, and allocates nothing in between."""

import random
from dataclasses import dataclass
from weakref import WeakSet

import pytest

from penstock.engine.memory import Arena, Lifetime, MemoryPlanner
from penstock.engine.memory.plan import CHUNK_BYTES
from tests.engine.memory.plans import encoder_lifetimes

BERT = encoder_lifetimes(num_layers=12, hidden=768, intermediate=3072)
LINE = (Lifetime("only", 0, 0, bytes_per_token=1 << 20),)  # a MiB a token


@dataclass(frozen=True)
class Block:
    address: int
    num_bytes: int

    def data_ptr(self) -> int:
        return self.address


class Device:
    """Hands out disjoint addresses and remembers what is out."""

    def __init__(self, capacity_bytes: int = 1 << 40, base: int = CHUNK_BYTES) -> None:
        self.held: WeakSet[Block] = WeakSet()  # without a reference they are free
        self.num_allocations = 0
        self.capacity_bytes = capacity_bytes
        self._next = base

    def allocate(self, num_bytes: int) -> Block:
        if sum(block.num_bytes for block in self.held) + num_bytes > self.capacity_bytes:
            raise MemoryError
        block = Block(self._next, num_bytes)
        self._next += num_bytes + CHUNK_BYTES
        self.held.add(block)
        self.num_allocations += 1
        return block


def make_arena(device: Device) -> Arena[Block]:
    return Arena(device.allocate)


def place(arena: Arena[Block], planner: MemoryPlanner, tokens: int) -> None:
    arena.place(planner.plan(tokens, arena.chunk_bytes))


def test_nothing_is_allocated_or_freed_after_warm_up_in_1000_random_batches() -> None:
    device, planner, rng = Device(), MemoryPlanner(BERT), random.Random(0)
    arena = make_arena(device)
    place(arena, planner, 16384)
    held = arena.held_bytes
    for _ in range(1000):
        place(arena, planner, rng.randint(1, 16384))
    assert (device.num_allocations, len(device.held), arena.held_bytes) == (1, 1, held)


def test_every_region_fits_into_its_chunk() -> None:
    device, planner = Device(), MemoryPlanner(BERT)
    arena = make_arena(device)
    for tokens in (10, 3000, 200, 9000):
        plan = planner.plan(tokens, arena.chunk_bytes)
        arena.place(plan)
        for chunk, offset, size in zip(plan.region_chunk, plan.region_offset, plan.region_bytes, strict=True):
            assert offset + size <= arena.buffers[chunk].num_bytes
    assert device.num_allocations == len(device.held) == len(arena.buffers)


def test_growth_keeps_what_is_there() -> None:
    device, planner = Device(), MemoryPlanner(LINE)
    arena = make_arena(device)
    place(arena, planner, 2)
    before = arena.buffers
    place(arena, planner, 40)
    assert arena.buffers[: len(before)] == before
    assert arena.chunk_bytes == (2 << 20, 48 << 20)


def test_trim_frees_what_the_plans_since_the_last_did_not_need() -> None:
    device, planner = Device(), MemoryPlanner(LINE)
    arena = make_arena(device)
    place(arena, planner, 40)
    place(arena, planner, 4)
    assert not arena.trim()  # 40 came since
    place(arena, planner, 4)
    place(arena, planner, 3)
    assert arena.trim()
    assert (len(device.held), arena.chunk_bytes, arena.held_bytes) == (0, (), 0)
    place(arena, planner, 4)
    assert [block.num_bytes for block in device.held] == [4 << 20]
    assert device.num_allocations == 2


def test_a_burst_after_which_nothing_comes_is_freed_at_the_second_trim() -> None:
    device, planner = Device(), MemoryPlanner(LINE)
    arena = make_arena(device)
    place(arena, planner, 400)
    assert [arena.trim() for _ in range(4)] == [False, True, False, False]
    assert not device.held


def test_trim_waits_for_a_real_gain() -> None:
    device, planner = Device(), MemoryPlanner(LINE)
    arena = make_arena(device)
    for tokens in (40, 38, 30, 28):
        place(arena, planner, tokens)
        assert not arena.trim()
    assert arena.held_bytes == 40 << 20


def test_an_allocation_that_fails_changes_nothing() -> None:
    device, planner = Device(capacity_bytes=10 << 20), MemoryPlanner(LINE)
    arena = make_arena(device)
    place(arena, planner, 8)
    before = arena.buffers
    with pytest.raises(MemoryError):
        place(arena, planner, 20)
    assert arena.chunk_bytes == (8 << 20,)
    place(arena, planner, 8)
    assert arena.buffers == before


def test_a_plan_for_chunks_that_are_gone_is_a_bug() -> None:
    device, planner = Device(), MemoryPlanner(LINE)
    arena = make_arena(device)
    place(arena, planner, 2)
    plan = planner.plan(2, arena.chunk_bytes)
    arena.release()
    assert not device.held
    place(arena, planner, 6)
    with pytest.raises(RuntimeError, match="other chunks"):
        arena.place(plan)


def test_an_unaligned_device_is_a_bug_and_leaks_nothing() -> None:
    device = Device(base=100)
    arena = make_arena(device)
    with pytest.raises(RuntimeError, match="multiple of 256"):
        place(arena, MemoryPlanner(LINE), 1)
    assert not device.held
    assert arena.chunk_bytes == ()
