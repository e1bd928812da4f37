"""The parts of the probe of generation: what each measures."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from penstock.ops.bench.cellular.generation.generation_baseline import static_requests_per_s
from penstock.ops.bench.cellular.generation.generation_bed import SEED, Bed
from penstock.ops.bench.cellular.generation.generation_models import options_of, step_floor
from penstock.ops.bench.gpu.timing import wall_s
from penstock.worker.garbage_collection import calm_garbage_collection

BYTES_PER_S, FLOPS_PER_S = 4.8e12, 989e12  # of an H200, by its data sheet: memory, and products of halves

_SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)  # of the saturated rate
Part = tuple[float, Callable[[], Any]]  # seconds at most, and the work


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
    parts["in_order_greedy"] = (20, partial(_in_order, bed))
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
    calm_garbage_collection()
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
    """Requests a second by quantum. device_share: of the time that the steps alone, at full size, take the device."""
    seconds, found = bed.sizes.seconds, {}
    steps = bed.results.get(f"step_{name_of(beams)}", {}).get("result") or {}
    for quantum in bed.sizes.quanta:
        one = bed.load(beams, quantum, joins_late, works_ahead).saturate(seconds, seconds / 2)
        if joins_late and str(quantum) in steps:
            one["device_share"] = 1e-6 * one["quanta_per_s"] * quantum * steps[str(quantum)]["device_us"]
        found[str(quantum)] = one
    return found


def _in_order(bed: Bed) -> dict[str, Any]:
    """As the part `continuous`, but the encoder waits for the steps underway instead of running beside them."""
    _, device, _ = bed.generator(1)
    beside = device.encode

    def encode(sources: Any, slots: Any) -> None:
        device.sources.wait_for_steps()
        beside(sources, slots)

    device.encode = encode  # type: ignore[method-assign]  # for this part alone
    try:
        return _saturated(bed, 1, joins_late=True)
    finally:
        device.encode = beside  # type: ignore[method-assign]


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
    found: dict[str, Any] = {}
    for way, joins_late in (("continuous", True), ("static", False)):
        load = bed.load(beams, quantum, joins_late)
        load.poisson(most / 2, seconds / 4, SEED)  # warms up
        found[way] = [load.poisson(share * most, seconds, SEED) for share in _SHARES]
    return found


def _kernels(bed: Bed) -> dict[str, Any]:
    """Microseconds of the kernels of a step that take the most, by beams."""
    if bed.device.type != "cuda":
        return {}
    from torch.profiler import ProfilerActivity, profile

    found: dict[str, Any] = {}
    for beams in bed.sizes.requests:
        generator, *_ = bed.generator(beams)
        _fill(bed, beams)
        _times(partial(generator.decode, quantum=1), bed.sizes.shape.longest // 4)
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            generator.decode(quantum=1)
            torch.cuda.synchronize()
        events = sorted(profiled.key_averages(), key=lambda event: -event.device_time_total)
        found[name_of(beams)] = [(event.key[:80], event.count, event.device_time_total) for event in events[:25]]
        bed.idle(beams)
    return found
