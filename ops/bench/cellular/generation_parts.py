"""The parts of the suite of generation: what each measures, of greedy search or of beams."""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from penstock.ops.bench.cellular.generation_bench import BEAMS, GenerationBench, options_of, step_floor
from penstock.ops.bench.cellular.load import Driver, MonotonicClock, percentiles_ms, throughput
from penstock.ops.bench.common.draws import poisson
from penstock.ops.bench.gpu.timing import wall_s
from penstock.worker.stepping.generation_work import GenerationWork

BYTES_PER_S, FLOPS_PER_S = 4.8e12, 989e12  # of an H200, by its data sheet: memory, and products of halves
_SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)  # of the saturated rate
_WARM_UP = 0.3  # of a load's time
_PAD = 1


def step(bench: GenerationBench, search: str) -> dict[str, Any]:
    """Microseconds of a step on an idle device, by quantum, of as many requests as may run.

    They are between a quarter of the longest output and its end.
    """
    (generator, device), sizes, beams = bench.idle(search), bench.sizes, BEAMS[search]
    shape, works = sizes.shape, bench.works(search)[: sizes.requests[search]]
    found: dict[str, Any] = {}
    for quantum in (1, *sizes.quanta):
        for id, work in enumerate(works):
            generator.start(id, work.token_ids, options_of(shape.longest, beams))
        while generator.encode():
            pass
        for _ in range(shape.longest // 4 // quantum):
            generator.decode(quantum=quantum)
        count = max(1, min(8, shape.longest // 4 // quantum))
        launch = partial(device.search.launch, generator.active, quantum)
        taken_s = statistics.median(_seconds(bench, launch) for _ in range(count)) / quantum
        positions = shape.longest // 4 + count * quantum // 2
        sources = [len(work.token_ids) for work in works]
        num_bytes, flops = step_floor(shape, [positions] * len(works), sources, beams)
        least_s = max(num_bytes / BYTES_PER_S, flops / FLOPS_PER_S)
        found[str(quantum)] = {"device_us": 1e6 * taken_s, "floor_us": 1e6 * least_s, "ratio": taken_s / least_s}
        bench.idle(search)
    return found


def continuous(bench: GenerationBench, search: str) -> dict[str, Any]:
    """Requests a second by quantum while as many run as may, and others join whenever one ends."""
    found = _saturated(bench, search, joins_late=True)
    bench.saturated_per_s[search] = found[str(bench.sizes.quanta[0])]["requests_per_s"]
    return found


def static(bench: GenerationBench, search: str) -> dict[str, Any]:
    """The same, but none joins a batch that has begun."""
    return _saturated(bench, search, joins_late=False)


def transformers(bench: GenerationBench, search: str) -> dict[str, float]:
    """Requests a second of `generate` by the size of static batches: what a user would run today.

    Batches are padded to the longest source, and run to their longest output. The first one is not counted.
    """
    model, works = bench.model()[1].to(bench.device, bench.dtype), bench.works(search)
    found = {}
    for size in bench.sizes.batches[search]:
        _generate(model, works[:size], BEAMS[search])
        done, started = 0, time.perf_counter()
        while time.perf_counter() - started < bench.sizes.seconds:
            begin = (done + size) % (len(works) - size + 1)
            _generate(model, works[begin : begin + size], BEAMS[search])
            done += size
        found[str(size)] = done / (time.perf_counter() - started)
    return found


def arrivals(bench: GenerationBench, search: str) -> dict[str, Any]:
    """Latencies by rate, the same rates both ways: shares of what late joins reach when they are saturated."""
    seconds, quantum = bench.sizes.seconds / 2, bench.sizes.quanta[0]
    found: dict[str, Any] = {}
    for way, joins_late in (("continuous", True), ("static", False)):
        found[way] = []
        for share in (0.5, *_SHARES):  # the first one warms up
            rate = share * bench.saturated_per_s[search]
            due = poisson(rate, max(2, round(rate * seconds)), bench.seed)
            offered = _driver(bench, search, quantum, joins_late).offer(due)
            found_ms = percentiles_ms(offered.ends - offered.arrivals)
            found[way].append({"rate": rate, "p50_ms": found_ms["p50"], "p99_ms": found_ms["p99"]})
        del found[way][0]
    return found


def _saturated(bench: GenerationBench, search: str, *, joins_late: bool) -> dict[str, Any]:
    seconds, found = bench.sizes.seconds, {}
    for quantum in bench.sizes.quanta:
        driver = _driver(bench, search, quantum, joins_late)
        offered = driver.saturate(2 * bench.sizes.requests[search], seconds / (1 - _WARM_UP))
        ends = offered.began + seconds / (1 - _WARM_UP)
        found[str(quantum)] = {"requests_per_s": throughput(offered, ends - seconds, ends)}
    return found


def _driver(bench: GenerationBench, search: str, quantum: int, joins_late: bool) -> Driver:
    return Driver(bench.runner(search, quantum, joins_late=joins_late), bench.works(search), MonotonicClock())


def _seconds(bench: GenerationBench, work: Callable[[], object]) -> float:
    """Until the device is idle."""
    if bench.device.type == "cuda":
        return wall_s(work)
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


@torch.inference_mode()
def _generate(model: Any, works: Sequence[GenerationWork], num_beams: int) -> None:
    longest = max(len(work.token_ids) for work in works)
    ids = torch.full((len(works), longest), _PAD)
    for row, work in zip(ids, works, strict=True):
        row[: len(work.token_ids)] = torch.from_numpy(work.token_ids)
    new_tokens = max(work.options.max_new_tokens for work in works)
    ids = ids.to(model.device)
    found = model.generate(
        ids,
        attention_mask=(ids != _PAD).long(),
        num_beams=num_beams,
        do_sample=False,
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        eos_token_id=None,
        forced_eos_token_id=None,
    )
    found.cpu()
