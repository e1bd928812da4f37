"""Memory of the intermediates, after Figures 11 to 13 of TurboTransformers: 1,000 batches of random length.

Nothing here needs a GPU: it counts what each way of managing memory asks of the device's allocator. Torch's caching
allocator is not modelled; where there is a GPU, the real one can be measured.
"""

import random
import time
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from penstock.engine.memory import Arena, BufferId, Lifetime, Planner, Tape
from penstock.engine.memory.greedy import Taken, find_gap
from penstock.engine.memory.plan import CHUNK_BYTES
from penstock.ops.bench.common.claims import Claim, Criterion, Grid, PartResult
from penstock.ops.bench.common.setup import Setup

_NUM_BATCHES = 1000
_BYTES = 2  # of a float16
_K_SCALE = 1.2  # of the paper

Batch = tuple[int, int]  # tokens, sequences
Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Block:
    """Device memory that is counted, not held."""

    address: int
    num_bytes: int


@dataclass(slots=True)
class Device:
    """What one way of managing memory asked of the device."""

    held_bytes: int = 0
    peak_bytes: int = 0
    allocated_bytes: int = 0
    freed_bytes: int = 0
    num_calls: int = 0

    def allocate(self, num_bytes: int) -> Block:
        self.num_calls += 1
        self.allocated_bytes += num_bytes
        self.held_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        return Block(self.num_calls * CHUNK_BYTES, num_bytes)

    def free(self, block: Block) -> None:
        self.num_calls += 1
        self.freed_bytes += block.num_bytes
        self.held_bytes -= block.num_bytes


def run_memory_plan(setup: Setup) -> PartResult:
    """Part `memory-plan`: BERT-base in float16."""
    lifetimes = encoder_lifetimes(num_layers=12, hidden=768, intermediate=3072)
    count = setup.count(_NUM_BATCHES)
    works = {
        "one request of 5 to 500 tokens": _single_requests(count),
        "batches of up to 16,384 tokens": _batches(count, 16384),
    }
    claims: list[Claim] = []
    grids, details = [], {}
    for name, batches in works.items():
        micros, shares = _plan_all(lifetimes, batches)
        devices = {way: manage(lifetimes, batches) for way, manage in WAYS.items()}
        claims += _claims(name, micros, shares)
        grids.append(_grid(name, devices, len(batches)))
        details[name] = {
            "planning_us": dict(zip(("p50", "p99"), _p50_p99(micros), strict=True)),
            "smallest_share_of_lower_bound": min(shares),
            "device": {way: asdict(device) for way, device in devices.items()},
        }
    return PartResult(claims=claims, grids=grids, details=details)


def encoder_lifetimes(*, num_layers: int, hidden: int, intermediate: int, gated: bool = False) -> tuple[Lifetime, ...]:
    """The tape of a BERT-like encoder in float16 with pooling. Only an activation that is not gated works in place."""
    tape = Tape()

    def operation(name: str, width: int, *inputs: BufferId) -> BufferId:
        output = tape.allocate(_BYTES * width, "tokens", name)
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
    tape.allocate(4 * hidden, "sequences", "pooled")  # float32
    tape.step()
    return tape.lifetimes()


def _single_requests(count: int) -> list[Batch]:
    """The paper's: one sequence of 5 to 500 tokens, uniform."""
    rng = random.Random(0)
    return [(rng.randint(5, 500), 1) for _ in range(count)]


def _batches(count: int, max_tokens: int) -> list[Batch]:
    """Of any size up to the budget, with a mean length of 2 to 100."""
    rng = random.Random(0)
    tokens = [rng.randint(100, max_tokens) for _ in range(count)]
    return [(total, total // rng.randint(2, 100)) for total in tokens]


def _plan_all(lifetimes: Sequence[Lifetime], batches: Sequence[Batch]) -> tuple[Float64Array, list[float]]:
    """Microseconds of each plan with its addresses, none from a cache, and its share of the lower bound."""
    arena = Arena(Device().allocate, Device().free)
    planner = Planner(lifetimes, cached_plans=0)
    arena.place(planner.plan(*max(batches)))
    plans = [planner.plan(*batch, arena.chunk_bytes) for batch in batches]
    # Written in place: a list of floats would grow into fresh pages, whose faults would count as planning.
    micros = np.zeros(len(batches))
    for index, batch in enumerate(batches):
        started = time.perf_counter_ns()
        arena.place(planner.plan(*batch, arena.chunk_bytes))
        micros[index] = time.perf_counter_ns() - started
    return micros / 1e3, [plan.lower_bound_bytes / plan.used_bytes for plan in plans]


def _planned(lifetimes: Sequence[Lifetime], batches: Sequence[Batch]) -> Device:
    device, planner = Device(), Planner(lifetimes)
    arena = Arena(device.allocate, device.free)
    for batch in batches:
        arena.place(planner.plan(*batch, arena.chunk_bytes))
    return device


def _planned_warm(lifetimes: Sequence[Lifetime], batches: Sequence[Batch]) -> Device:
    """The largest batch first, as the engine does when it starts."""
    return _planned(lifetimes, [max(batches), *batches])


def _as_printed(lifetimes: Sequence[Lifetime], batches: Sequence[Batch]) -> Device:
    """The paper's listing to the letter: a chunk a misfit, chunks that a batch leaves unused are released at once."""
    device = Device()
    chunks: list[Block] = []
    enemies = [{i for i, other in enumerate(lifetimes) if other.meets(one)} for one in lifetimes]
    for batch in batches:
        sizes = [lifetime.num_bytes(*batch) for lifetime in lifetimes]
        taken: list[Taken] = [[] for _ in chunks]
        for item in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
            starts = [find_gap(sizes[item], enemies[item], t, c.num_bytes) for t, c in zip(taken, chunks, strict=True)]
            index = next((index for index, start in enumerate(starts) if start >= 0), len(chunks))
            if index == len(chunks):
                chunks.append(device.allocate(max(CHUNK_BYTES, int(sizes[item] * _K_SCALE))))
                taken.append([])
                starts.append(0)
            insort(taken[index], (starts[index], starts[index] + sizes[item], item))
        for chunk, items in zip(chunks, taken, strict=True):
            if not items:
                device.free(chunk)
        chunks = [chunk for chunk, items in zip(chunks, taken, strict=True) if items]
    return device


def _block_a_batch(lifetimes: Sequence[Lifetime], batches: Sequence[Batch]) -> Device:
    """Greedy by size with nothing kept: one block of just the planned size for each batch."""
    device, planner = Device(), Planner(lifetimes)
    for batch in batches:
        device.free(device.allocate(planner.plan(*batch).used_bytes))
    return device


def _when_needed(lifetimes: Sequence[Lifetime], batches: Sequence[Batch]) -> Device:
    """Every buffer allocated when its life begins and freed when it ends: the least memory, and the most calls."""
    device = Device()
    for batch in batches:
        alive: dict[int, Block] = {}
        for step in range(1 + max(lifetime.last for lifetime in lifetimes)):
            for index, lifetime in enumerate(lifetimes):
                if lifetime.first == step:
                    alive[index] = device.allocate(lifetime.num_bytes(*batch))
            for index in [index for index in alive if lifetimes[index].last == step]:
                device.free(alive.pop(index))
    return device


WAYS: dict[str, Callable[[Sequence[Lifetime], Sequence[Batch]], Device]] = {
    "planned, warmed up": _planned_warm,
    "planned, no warm-up": _planned,
    "the paper's listing": _as_printed,
    "one planned block a batch": _block_a_batch,
    "each buffer when needed": _when_needed,
}


def _claims(name: str, micros: Float64Array, shares: Sequence[float]) -> list[Claim]:
    p50, p99 = _p50_p99(micros)
    speed = Criterion("p99, µs", p99, must=100, aim=30, higher_is_better=False)
    size = Criterion("smallest share of the lower bound", min(shares), must=0.9, aim=1.0)
    return [
        Claim(f"memory plan, {name}", f"p50 {p50:.1f} µs, p99 {p99:.1f} µs", "", None, "", None, speed),
        Claim(f"memory plan, {name}", f"{min(shares):.3f}", "", None, "the most live bytes", min(shares), size),
    ]


def _grid(name: str, devices: dict[str, Device], num_batches: int) -> Grid:
    mib = 1 << 20
    return Grid(
        f"{name}: intermediates of BERT-base, float16, {num_batches:,} batches",
        ("way", "peak held MiB", "held at the end MiB", "allocated MiB/batch", "freed MiB/batch", "calls/batch"),
        [
            (
                way,
                device.peak_bytes / mib,
                device.held_bytes / mib,
                device.allocated_bytes / mib / num_batches,
                device.freed_bytes / mib / num_batches,
                device.num_calls / num_batches,
            )
            for way, device in devices.items()
        ],
    )


def _p50_p99(values: Float64Array) -> tuple[float, float]:
    return float(np.percentile(values, 50)), float(np.percentile(values, 99))
