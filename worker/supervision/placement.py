"""Number of members, and the GPU and cores of each. Pure: the machine is an argument."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

MEMBERS_PER_GPU = 5  # keep a large GPU busy with a record a request on a slow host too (ops/bench/pipeline/NOTES.md)
_CORES_PER_MEMBER = 2  # one for the event loop, one for the engine's lane and the tokenizer


class CannotPlace(ValueError):
    """The members that were asked for have no place on this machine. The message says why."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that this process may use."""

    uuid: str  # as CUDA_VISIBLE_DEVICES takes it
    name: str
    free_bytes: int | None  # None: unknown, as for a slice of a GPU (MIG)


@dataclass(frozen=True, slots=True)
class Machine:
    """Resources on which members can be placed."""

    cpus: tuple[int, ...]  # that this process may use; neighbours share a core, or else a socket
    gpus: tuple[Gpu, ...]  # visible, in the order of their numbers


@dataclass(frozen=True, slots=True)
class Placement:
    """GPU and cores of one member."""

    worker: int  # unique among the supervisor's members
    gpu: int | None  # number among the visible GPUs; None: on the CPU
    uuid: str | None  # of the GPU
    cpus: tuple[int, ...]

    @property
    def device(self) -> str:
        """Name for logs; equal for the members that fail together."""
        return "cpu" if self.gpu is None else f"gpu {self.gpu}"

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables that libraries read when they are loaded. The other threads of a member follow its cores."""
        if self.uuid is None:
            return {}
        # The tokenizer leaves a core to the event loop, which feeds the device.
        return {"CUDA_VISIBLE_DEVICES": self.uuid, "RAYON_NUM_THREADS": str(max(1, len(self.cpus) - 1))}


def place(machine: Machine, gpus: Sequence[int], processes: int | None) -> list[Placement]:
    """Place `processes` members on each of the GPUs, or on the CPU if `gpus` is empty.

    `processes` None: one on the CPU, whose lanes use all cores. On each GPU five, but no more than one for two cores.
    The GPUs share the cores evenly, and so do the members of a GPU. Numbers go around the GPUs, so that Kafka, which
    deals partitions to members in their order, spreads them over the GPUs.

    Raises CannotPlace.
    """
    if not gpus:
        parts = _parts(machine.cpus, processes or 1)
        return [Placement(worker, None, None, cpus) for worker, cpus in enumerate(parts)]
    for number in gpus:
        if number >= len(machine.gpus):
            raise CannotPlace(f"--gpus {number}: {_visible(machine)}.")
    parts = _parts(machine.cpus, len(gpus))
    per_gpu = processes or min(MEMBERS_PER_GPU, max(1, len(parts[-1]) // _CORES_PER_MEMBER))
    shares = [_parts(part, per_gpu) for part in parts]
    return [
        Placement(place * len(gpus) + at, gpu, machine.gpus[gpu].uuid, shares[at][place])
        for place in range(per_gpu)
        for at, gpu in enumerate(gpus)
    ]


def most_on_a_gpu(placements: Sequence[Placement]) -> int:
    """Most members that share one GPU; 0 on a CPU."""
    return max(Counter(one.gpu for one in placements if one.gpu is not None).values(), default=0)


def standbys(placements: Sequence[Placement]) -> list[Placement]:
    """Place one member more on each device. It waits, on the cores of the last member there."""
    devices = {placement.gpu: placement for placement in placements}
    first = 1 + max(placement.worker for placement in placements)
    return [replace(last, worker=first + at) for at, last in enumerate(devices.values())]


def one_more(machine: Machine, placed: Sequence[Placement], numbers: Collection[int]) -> Placement:
    """Place one more member where the fewest are. It shares the cores of the members there. numbers: those in use."""
    worker = min(set(range(len(numbers) + 1)).difference(numbers))
    counts = {placement.gpu: 0 for placement in placed}
    for placement in placed:
        counts[placement.gpu] += 1
    gpu = min(counts, key=lambda gpu: (counts[gpu], gpu or 0))
    cpus = {cpu for placement in placed if placement.gpu == gpu for cpu in placement.cpus}
    return Placement(worker, gpu, None if gpu is None else machine.gpus[gpu].uuid, tuple(sorted(cpus)))


def num_fitting(wanted: int, free_bytes: int | None, member_bytes: int) -> tuple[int, str]:
    """Number of the `wanted` members that the memory holds, and the arithmetic if it is fewer."""
    if free_bytes is None or wanted * member_bytes <= free_bytes:
        return wanted, ""
    fitting = free_bytes // member_bytes
    who = "1 member needs" if wanted == 1 else f"{wanted} members need"
    fit = "1 fits" if fitting == 1 else f"{fitting or 'none'} fit"
    return fitting, f"{who} {wanted} x {_gib(member_bytes)}, {_gib(free_bytes)} are free: {fit}"


def _parts(cpus: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """`count` parts of the cores, sizes equal up to one, the smallest last. With too few cores, parts repeat."""
    if len(cpus) < count:
        return [(cpus[at % len(cpus)],) for at in range(count)]
    size, rest = divmod(len(cpus), count)
    starts = [at * size + min(at, rest) for at in range(count + 1)]
    return [tuple(cpus[start:end]) for start, end in pairwise(starts)]


def _visible(machine: Machine) -> str:
    count = len(machine.gpus)
    return f"this machine has {count} visible GPU{'s' if count > 1 else ''}, from 0" if count else "no GPU is visible"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
