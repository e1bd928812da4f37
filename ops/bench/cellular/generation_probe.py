"""`python -m penstock.ops.bench.cellular.generation_probe`: times encoder-decoder generation on a GPU in 150 s.

Parts: a decoder step beside its floor; transformers' `generate` with static batches; our generator with requests that
join only at the start, and at every step; and both with requests that arrive. A part that fails loses only its own
figures. `--device cpu` runs the script's logic at tiny sizes; its times mean nothing.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from penstock.engine.generation.generator import Generator
from penstock.engine.generation.limits import GeneratorLimits
from penstock.engine.gpu.seq2seq import GpuSeq2Seq
from penstock.ops.bench.cellular.generation_baseline import static_requests_per_s
from penstock.ops.bench.cellular.generation_load import Load, uniform_work
from penstock.ops.bench.cellular.generation_models import MARIAN, TINY, Shape, options_of, random_model, step_floor
from penstock.ops.bench.gpu.timing import deadline, wall_s

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
class Probe:
    """Results so far, and what the parts share."""

    device: torch.device
    sizes: Sizes
    ends: float  # time.monotonic()
    output: Path
    results: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = self.sizes.shape
        self.model = cache(lambda: random_model(shape, SEED))
        self.work = cache(lambda: uniform_work(self.sizes.work, shape.vocabulary, shape.longest, SEED))
        self.generator = cache(self._generator)

    @property
    def dtype(self) -> torch.dtype:
        """float32 where the device has no kernels."""
        return torch.float16 if self.device.type == "cuda" else torch.float32

    def part(self, name: str, seconds: float, work: Callable[[], Any]) -> None:
        """Run a part and keep its result, or its error. It is skipped once the time is up."""
        left, started = min(seconds, self.ends - time.monotonic()), time.monotonic()
        record: dict[str, Any] = {"error": None, "result": None}
        try:
            if left < 1:
                raise TimeoutError("skipped: the time is up")
            with deadline(left):
                record["result"] = work()
        except Exception as error:
            record["error"] = f"{type(error).__name__}: {error}"
            traceback.print_exc(file=sys.stdout)
        record["seconds"] = round(time.monotonic() - started, 2)
        self.results[name] = record
        self.output.write_text(json.dumps(self.results, indent=1), encoding="utf-8")
        print(f"[{name}] {record['seconds']} s {record['error'] or json.dumps(record['result'])}", flush=True)

    def load(self, num_beams: int, quantum: int, *, joins_late: bool) -> Load:
        """A load on the generator of so many beams."""
        generator, _ = self.generator(num_beams)
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
        device.search.prepare(options_of(sizes.shape.longest, num_beams), (1, *sizes.quanta), count)
        return Generator(weights, limits, device=device), device


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0; 1 if a part failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--output", type=Path, default=Path(os.environ.get("OUT", ".")), help="folder of the JSON file")
    parser.add_argument("--time-limit-s", type=float, default=150.0)
    parser.add_argument("--seconds", type=float, help="of each measurement; default: by the device")
    parser.add_argument("--parts", help="some parts, separated by commas; default: all")
    chosen = parser.parse_args(arguments)
    is_gpu, ends = chosen.device == "cuda", time.monotonic() + chosen.time_limit_s
    output = chosen.output / "generation_probe.json"
    sizes = ON_GPU if is_gpu else ON_CPU
    sizes = replace(sizes, seconds=chosen.seconds or sizes.seconds)
    probe = Probe(torch.device(chosen.device), sizes, ends, output)
    if not is_gpu:
        torch.set_num_threads(1)  # operations are too small for more
    probe.results["machine"] = _machine(is_gpu)
    parts = parts_of(probe)
    names = chosen.parts.split(",") if chosen.parts else list(parts)
    for name in names:
        probe.part(name, *parts[name])
    failed = [name for name in names if probe.results[name]["error"]]
    print(f"failed parts: {failed or 'none'}; written to {output}", flush=True)
    return 1 if failed else 0


def parts_of(probe: Probe) -> dict[str, Part]:
    """Each part, the most important first."""
    parts: dict[str, Part] = {"model": (40, partial(_model, probe))}
    for beams in probe.sizes.requests:
        name = _name(beams)
        parts |= {
            f"prepare_{name}": (40, partial(_prepare, probe, beams)),
            f"step_{name}": (15, partial(_step, probe, beams)),
            f"continuous_{name}": (20, partial(_saturated, probe, beams, joins_late=True)),
            f"static_{name}": (20, partial(_saturated, probe, beams, joins_late=False)),
            f"transformers_{name}": (30, partial(_transformers, probe, beams)),
        }
    for beams in probe.sizes.requests:
        parts[f"arrivals_{_name(beams)}"] = (25, partial(_arrivals, probe, beams))
    parts["kernels"] = (20, partial(_kernels, probe))
    return parts


def _name(beams: int) -> str:
    return "greedy" if beams == 1 else f"beams_{beams}"


def _model(probe: Probe) -> dict[str, Any]:
    checkpoint, _ = probe.model()
    lengths = [one.new_tokens for one in probe.work()]
    return {"shape": str(probe.sizes.shape), "pre_norm": checkpoint.weights.pre_norm, "mean": statistics.mean(lengths)}


def _prepare(probe: Probe, beams: int) -> dict[str, Any]:
    started = time.perf_counter()
    probe.generator(beams)
    found: dict[str, Any] = {"seconds": time.perf_counter() - started}
    if probe.device.type == "cuda":
        found["device_bytes"] = torch.cuda.memory_allocated()
    return found


def _step(probe: Probe, beams: int) -> dict[str, Any]:
    """Microseconds of a step by quantum: until the host has the tokens, and until the device has ended.

    Both on the host's clock, in turn. All requests are between a quarter and a half of the longest output.
    """
    generator, device = probe.generator(beams)
    count, shape = probe.sizes.requests[beams], probe.sizes.shape
    found: dict[str, Any] = {}
    for quantum in (1, *probe.sizes.quanta):
        for id, one in enumerate(probe.work()[:count]):
            generator.start(id, one.source, options_of(shape.longest, beams))
        while generator.encode():
            pass
        middle, past = shape.longest // 4, 0
        while past < middle:
            generator.decode(quantum=quantum)
            past += quantum
        times: dict[str, list[float]] = {"step_us": [], "device_us": []}
        works: dict[str, Callable[[], object]] = {
            "step_us": partial(generator.decode, quantum=quantum),
            "device_us": partial(device.search.launch, generator.active, quantum),
        }
        for _ in range(max(1, min(8, shape.longest // 4 // quantum // 2))):
            for name, work in works.items():
                times[name].append(1e6 * _timed(probe, work) / quantum)
                past += quantum
        mean = middle + (past - middle) // 2
        sources = [len(one.source) for one in probe.work()[:count]]
        floor = step_floor(shape, [mean] * count, sources, beams)
        floor_us = 1e6 * floor.seconds(BYTES_PER_S, FLOPS_PER_S)
        medians = {name: statistics.median(values) for name, values in times.items()}
        found[str(quantum)] = {
            **medians,
            "floor_us": floor_us,
            "ratio": medians["device_us"] / floor_us,
            "floor_bytes": floor.bytes,
            "floor_flops": floor.flops,
            "positions": mean,
        }
        for id in generator.active:
            generator.cancel(id)
    return found


def _timed(probe: Probe, work: Callable[[], object]) -> float:
    """Seconds."""
    if probe.device.type == "cuda":
        return wall_s(work)
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _saturated(probe: Probe, beams: int, *, joins_late: bool) -> dict[str, Any]:
    seconds = probe.sizes.seconds
    return {
        str(quantum): probe.load(beams, quantum, joins_late=joins_late).saturate(seconds, seconds / 2)
        for quantum in probe.sizes.quanta
    }


def _transformers(probe: Probe, beams: int) -> dict[str, float]:
    _, model = probe.model()
    model = model.to(probe.device, probe.dtype)
    return {
        str(batch): static_requests_per_s(model, probe.work(), batch, beams, probe.sizes.seconds)
        for batch in probe.sizes.batches[beams]
    }


def _arrivals(probe: Probe, beams: int) -> dict[str, Any]:
    """Latencies by rate, the same rates both ways: shares of what late joins reach when they are saturated."""
    quantum, seconds = probe.sizes.quanta[0], probe.sizes.seconds / 2
    most = probe.results[f"continuous_{_name(beams)}"]["result"][str(quantum)]["requests_per_s"]
    loads = {
        way: probe.load(beams, quantum, joins_late=joins_late)
        for way, joins_late in (("continuous", True), ("static", False))
    }
    shares = (0.3, 0.5, 0.7, 0.9)
    return {way: [load.poisson(share * most, seconds, SEED) for share in shares] for way, load in loads.items()}


def _kernels(probe: Probe) -> dict[str, Any]:
    """Microseconds of the kernels of a step that take the most, by beams."""
    if probe.device.type != "cuda":
        return {}
    from torch.profiler import ProfilerActivity, profile

    found: dict[str, Any] = {}
    for beams, count in probe.sizes.requests.items():
        generator, _ = probe.generator(beams)
        for id, one in enumerate(probe.work()[:count]):
            generator.start(id, one.source, options_of(probe.sizes.shape.longest, beams))
        while generator.encode():
            pass
        for _ in range(25):
            generator.decode(quantum=1)
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            generator.decode(quantum=1)
            torch.cuda.synchronize()
        events = sorted(profiled.key_averages(), key=lambda event: -event.device_time_total)
        found[_name(beams)] = [(event.key[:80], event.count, event.device_time_total) for event in events[:25]]
        for id in generator.active:
            generator.cancel(id)
    return found


def _machine(is_gpu: bool) -> dict[str, Any]:
    described: dict[str, Any] = {"python": platform.python_version(), "torch": torch.__version__}
    return described | ({"gpu": torch.cuda.get_device_name()} if is_gpu else {})


if __name__ == "__main__":
    sys.exit(main())
