"""The parts of the probe of generation: what each measures, and the models and generators that they share."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch

from penstock.engine.generation.generator import Generator
from penstock.engine.generation.limits import GeneratorLimits
from penstock.engine.gpu.seq2seq import GpuSeq2Seq
from penstock.ops.bench.cellular.generation.generation_baseline import static_requests_per_s
from penstock.ops.bench.cellular.generation.generation_load import Load, uniform_work
from penstock.ops.bench.cellular.generation.generation_models import (
    MARIAN,
    TINY,
    Shape,
    options_of,
    random_model,
    step_floor,
)
from penstock.ops.bench.gpu.timing import wall_s

SEED = 2026
BEAMS = 4
BYTES_PER_S, FLOPS_PER_S = 4.8e12, 989e12  # of an H200, by its data sheet: memory, and products of halves

Part = tuple[float, Callable[[], Any]]  # seconds at most, and the work


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a run."""

    shape: Shape
    requests: Mapping[int, int]  # by beams: that run at a time
    quanta: tuple[int, ...]
    batches: Mapping[int, tuple[int, ...]]  # by beams: of transformers
    seconds: float  # of each measurement
    work: int  # different requests


ON_GPU = Sizes(MARIAN, {1: 512, BEAMS: 512}, (4, 8), {1: (128, 256), BEAMS: (32, 64)}, 2.0, 8192)
ON_CPU = Sizes(TINY, {1: 8, BEAMS: 4}, (2,), {1: (4,), BEAMS: (2,)}, 0.2, 64)


@dataclass
class Bed:
    """Models and generators that the parts share."""

    device: torch.device
    sizes: Sizes
    results: dict[str, Any] = field(default_factory=dict)  # of the parts so far: each `error` and `result`

    def __post_init__(self) -> None:
        shape = self.sizes.shape
        self.model = cache(lambda: random_model(shape, SEED))
        self.work = cache(lambda: uniform_work(self.sizes.work, shape.vocabulary, shape.longest, SEED))
        self.generator = cache(self._generator)

    @property
    def dtype(self) -> torch.dtype:
        """float32 where the device has no kernels."""
        return torch.float16 if self.device.type == "cuda" else torch.float32

    def idle(self, num_beams: int, *, works_ahead: bool = False) -> tuple[Generator, GpuSeq2Seq]:
        """The generator of this number of beams, without requests of a part that failed."""
        generator, device = self.generator(num_beams)
        for id in (*generator.waiting, *generator.active):
            generator.cancel(id)
        device.search.works_ahead = works_ahead
        return generator, device

    def load(self, num_beams: int, quantum: int, joins_late: bool, works_ahead: bool = True) -> Load:
        """A load on the generator of this number of beams."""
        generator, _ = self.idle(num_beams, works_ahead=works_ahead)
        return Load(
            generator,
            self.work(),
            partial(options_of, num_beams=num_beams),
            max_requests=self.sizes.requests[num_beams],
            quantum=quantum,
            joins_late=joins_late,
        )

    def _generator(self, num_beams: int) -> tuple[Generator, GpuSeq2Seq]:
        """Its graphs are captured."""
        sizes, page_size = self.sizes, 16
        count, pages = sizes.requests[num_beams], -(-sizes.shape.longest // page_size)
        limits = GeneratorLimits(
            num_pages=count * (1 + num_beams) * pages,
            page_size=page_size,
            max_rows=count * num_beams,
            max_waiting=count,
            max_encode_tokens=65_536,
            max_source_tokens=sizes.shape.longest,
            max_new_tokens=sizes.shape.longest,
        )
        weights = self.model()[0].weights
        device = GpuSeq2Seq(weights, limits, device=self.device, dtype=self.dtype)
        device.prepare(options_of(sizes.shape.longest, num_beams), (1, *sizes.quanta), count)
        return Generator(weights, limits, device=device), device


def parts_of(bed: Bed) -> dict[str, Part]:
    """Each part, the most important first."""
    parts: dict[str, Part] = {"model": (40, partial(_model, bed))}
    for beams in bed.sizes.requests:
        name = name_of(beams)
        parts |= {
            f"prepare_{name}": (40, partial(_prepare, bed, beams)),
            f"step_{name}": (15, partial(_step, bed, beams)),
            f"continuous_{name}": (20, partial(_saturated, bed, beams, joins_late=True)),
            f"static_{name}": (20, partial(_saturated, bed, beams, joins_late=False)),
            f"synchronous_{name}": (20, partial(_saturated, bed, beams, joins_late=True, works_ahead=False)),
            f"transformers_{name}": (30, partial(_transformers, bed, beams)),
        }
    for beams in bed.sizes.requests:
        parts[f"arrivals_{name_of(beams)}"] = (25, partial(_arrivals, bed, beams))
    parts["kernels"] = (20, partial(_kernels, bed))
    return parts


def name_of(beams: int) -> str:
    return "greedy" if beams == 1 else f"beams_{beams}"


def _model(bed: Bed) -> dict[str, Any]:
    checkpoint, _ = bed.model()
    lengths = [one.new_tokens for one in bed.work()]
    return {"shape": str(bed.sizes.shape), "pre_norm": checkpoint.weights.pre_norm, "mean": statistics.mean(lengths)}


def _prepare(bed: Bed, beams: int) -> dict[str, Any]:
    started = time.perf_counter()
    bed.generator(beams)
    found: dict[str, Any] = {"seconds": time.perf_counter() - started}
    if bed.device.type == "cuda":
        found["device_bytes"] = torch.cuda.memory_allocated()
    return found


def _step(bed: Bed, beams: int) -> dict[str, Any]:
    """Microseconds of a step by quantum, for requests between a quarter of the longest output and its end.

    On the device, on an idle one until it is idle again; with the host's part, one quantum after another; and where the
    device works ahead.
    """
    generator, device = bed.idle(beams)
    shape, work = bed.sizes.shape, bed.work()[: bed.sizes.requests[beams]]
    sources = [len(one.source) for one in work]
    found: dict[str, Any] = {}
    for quantum in (1, *bed.sizes.quanta):
        _fill(bed, beams)
        count = max(1, min(8, shape.longest // 4 // quantum))
        decode = partial(generator.decode, quantum=quantum)
        for _ in range(shape.longest // 4 // quantum):
            decode()
        launch = partial(device.search.launch, generator.active, quantum)
        on_device = statistics.median(_seconds(bed, launch) for _ in range(count))
        with_host = _seconds(bed, partial(_times, decode, count)) / count
        device.search.works_ahead = True
        ahead = _seconds(bed, partial(_times, decode, count)) / count
        device.search.works_ahead = False
        positions = shape.longest // 4 + count * quantum // 2
        floor = step_floor(shape, [positions] * len(work), sources, beams)
        least = floor.seconds(BYTES_PER_S, FLOPS_PER_S)
        found[str(quantum)] = {
            "device_us": 1e6 * on_device / quantum,
            "with_host_us": 1e6 * with_host / quantum,
            "ahead_us": 1e6 * ahead / quantum,
            "floor_us": 1e6 * least,
            "ratio": on_device / quantum / least,
            "floor_bytes": floor.bytes,
            "floor_flops": floor.flops,
            "positions": positions,
        }
        bed.idle(beams)
    return found


def _fill(bed: Bed, beams: int) -> None:
    """Start as many requests as may run, all of the longest output, and encode them."""
    generator, _ = bed.idle(beams)
    for id, one in enumerate(bed.work()[: bed.sizes.requests[beams]]):
        generator.start(id, one.source, options_of(bed.sizes.shape.longest, beams))
    while generator.encode():
        pass


def _times(work: Callable[[], object], count: int) -> None:
    for _ in range(count):
        work()


def _seconds(bed: Bed, work: Callable[[], object]) -> float:
    """Until the device is idle."""
    if bed.device.type == "cuda":
        return wall_s(work)
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _saturated(bed: Bed, beams: int, *, joins_late: bool, works_ahead: bool = True) -> dict[str, Any]:
    seconds = bed.sizes.seconds
    return {
        str(quantum): bed.load(beams, quantum, joins_late, works_ahead).saturate(seconds, seconds / 2)
        for quantum in bed.sizes.quanta
    }


def _transformers(bed: Bed, beams: int) -> dict[str, float]:
    _, model = bed.model()
    model = model.to(bed.device, bed.dtype)
    return {
        str(batch): static_requests_per_s(model, bed.work(), batch, beams, bed.sizes.seconds)
        for batch in bed.sizes.batches[beams]
    }


def _arrivals(bed: Bed, beams: int) -> dict[str, Any]:
    """Latencies by rate, the same rates both ways: shares of what late joins reach when they are saturated."""
    quantum, seconds = bed.sizes.quanta[0], bed.sizes.seconds / 2
    most = bed.results[f"continuous_{name_of(beams)}"]["result"][str(quantum)]["requests_per_s"]
    shares = (0.3, 0.5, 0.7, 0.9)
    found: dict[str, Any] = {}
    for way, joins_late in (("continuous", True), ("static", False)):
        load = bed.load(beams, quantum, joins_late)
        found[way] = [load.poisson(share * most, seconds, SEED) for share in shares]
    return found


def _kernels(bed: Bed) -> dict[str, Any]:
    """Microseconds of the kernels of a step that take the most, by beams."""
    if bed.device.type != "cuda":
        return {}
    from torch.profiler import ProfilerActivity, profile

    found: dict[str, Any] = {}
    for beams in bed.sizes.requests:
        generator, _ = bed.generator(beams)
        _fill(bed, beams)
        _times(partial(generator.decode, quantum=1), bed.sizes.shape.longest // 4)
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            generator.decode(quantum=1)
            torch.cuda.synchronize()
        events = sorted(profiled.key_averages(), key=lambda event: -event.device_time_total)
        found[name_of(beams)] = [(event.key[:80], event.count, event.device_time_total) for event in events[:25]]
        bed.idle(beams)
    return found
