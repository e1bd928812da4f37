"""The arithmetic of the benchmarks: how requests are counted, batched and timed."""

import asyncio
import gc
import io
import json
import math
import os
import signal
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from penstock.engine import NullEngine
from penstock.ops.bench.common.comparison import Comparison, Grid
from penstock.ops.bench.common.console_tables import show_comparisons, show_grid
from penstock.ops.bench.common.machine import describe_machine, slug
from penstock.ops.bench.common.processes import ProcessFailed, Service, cpu_s, rss_bytes, run_once
from penstock.ops.bench.common.sampler import Sampler, Samples, Stack, read_samples
from penstock.ops.bench.common.setup import shuffled_texts
from penstock.ops.bench.common.stages import GARBAGE, OTHER, function_of, split_cost, stage_of
from penstock.ops.bench.cpu.__main__ import PARTS
from penstock.ops.bench.cpu.cpu_tables import largest_change
from penstock.ops.bench.cpu.engine_alone import EngineAlone, fifo_batches, pack
from penstock.ops.bench.cpu.gemm_floor import LARGE_CHUNK_TOKENS, large_chunks
from penstock.ops.bench.cpu.load_generator import Recorder, bulk_calls, closed_loop, make_items, poisson
from penstock.ops.bench.cpu.load_spec import LoadResult, LoadSpec, percentiles_ms
from penstock.ops.bench.cpu.part_engine import cosine, fastest
from penstock.ops.demo.demo_model import model_directory
from penstock.producer.tokenization import Encoded
from penstock.worker import WorkerSettings
from penstock.worker.resolved_settings import resolve


def test_the_report_shows_figure_baseline_floor_and_ratio() -> None:
    row = Comparison("engine alone", "800 req/s", "other 554 req/s", 1.444, "GEMM 1,000 req/s", 0.8)
    screen = io.StringIO()
    console = Console(file=screen, width=200)
    show_comparisons(console, [row])
    show_grid(console, Grid("stages", ("stage", "µs"), [("encode", 12345.6), ("other", 3)]))
    for shown in ("800 req/s", "554", "1.44", "0.80", "GEMM 1,000", "12,346"):
        assert shown in screen.getvalue()


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 10), st.integers(1, 80))
def test_fifo_batches_keep_the_order_and_the_caps_and_are_full(
    lengths: list[int], max_sequences: int, max_tokens: int
) -> None:
    caps = {"model": "null", "max_batch_sequences": max_sequences, "max_batch_tokens": max_tokens}
    settings = resolve(WorkerSettings.model_validate(caps), NullEngine().info)
    sequences = [Encoded(np.full(length, index, np.int32), None) for index, length in enumerate(lengths)]
    batches = fifo_batches(sequences, settings)
    assert [sequence for batch in batches for sequence in batch] == sequences
    sizes = [sum(len(sequence.ids) for sequence in batch) for batch in batches]
    for index, batch in enumerate(batches):
        assert len(batch) == 1 or (len(batch) <= max_sequences and sizes[index] <= max_tokens)
        if index + 1 < len(batches):
            next_tokens = len(batches[index + 1][0].ids)
            assert len(batch) == max_sequences or sizes[index] + next_tokens > max_tokens


@given(st.integers(1, 100_000), st.integers(1, 8))
def test_large_chunks_hold_every_token_and_load_every_core_alike(tokens: int, cores: int) -> None:
    chunks = large_chunks(tokens, cores)
    assert sum(chunks) == tokens
    assert len(chunks) % cores == 0
    assert max(chunks) <= LARGE_CHUNK_TOKENS
    assert max(chunks) - min(chunks) <= 1


def test_a_packed_batch_lays_sequences_end_to_end() -> None:
    batch = pack([Encoded(np.array([5, 6, 7], np.int32), None), Encoded(np.array([8], np.int32), None)])
    assert batch.token_ids.tolist() == [5, 6, 7, 8]
    assert batch.cu_seqlens.tolist() == [0, 3, 4]
    assert (batch.max_seqlen, len(batch.options)) == (3, 2)


@pytest.mark.slow
def test_the_engine_alone_gives_each_text_its_own_vector() -> None:
    """Over several polls and batches, the texts' order is kept."""
    texts = [f"{text} {index}" for index, text in enumerate(shuffled_texts(20))] * 30
    engine = EngineAlone(model_directory(), "float32")
    vectors, seconds = engine.embed(texts)
    assert sum(engine.batch_tokens(texts)) > 3 * engine.settings.max_batch_tokens
    engine.close()
    assert vectors.shape == (600, 384)
    assert seconds > 0
    assert cosine(vectors, np.tile(vectors[:20], (30, 1))).min() > 0.99999


def test_texts_are_shuffled_the_same_way_each_time_and_start_again() -> None:
    texts = shuffled_texts(3100)
    assert texts[:20] == shuffled_texts(20)
    assert texts[3080:] == texts[:20]
    assert len(set(texts)) > 3000


def test_bulk_calls_never_hold_a_text_twice_at_once() -> None:
    texts = [str(index % 100) for index in range(300)]
    calls = bulk_calls(texts, 4)
    assert [text for call in calls for text in call] == texts
    for start in range(len(calls) - 3):
        together = [text for call in calls[start : start + 4] for text in call]
        assert len(set(together)) == len(together)


def test_a_request_without_an_answer_is_in_the_percentiles() -> None:
    latencies_s = [0.001 * n for n in range(1, 99)] + [math.inf] * 2
    found = percentiles_ms(latencies_s)
    assert found["p50"] == pytest.approx(51.0)
    assert found["p95"] == pytest.approx(96.0)
    assert (found["p99"], found["max"]) == (None, None)


async def test_poisson_latencies_count_from_the_schedule_even_when_the_loop_stalls() -> None:
    """A call that blocks the whole loop delays the ones after it, which were due meanwhile."""
    recorder = Recorder()

    async def call(item: int) -> None:
        if item == 0:
            time.sleep(0.2)  # noqa: ASYNC251 -- a stall of the loop is what is tested

    await poisson(call, list(range(50)), 1000.0, recorder)
    assert len(recorder.latencies_s) == 50
    assert sum(latency > 0.1 for latency in recorder.latencies_s) > 25


async def test_a_closed_loop_bounds_what_is_in_flight_and_counts_failures() -> None:
    recorder, running, most = Recorder(), 0, 0

    async def call(item: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        if item % 10 == 0:
            raise TimeoutError

    await closed_loop(call, list(range(100)), 7, recorder)
    assert most == 7
    assert recorder.failures == {"TimeoutError": 10}
    assert sum(map(math.isinf, recorder.latencies_s)) == 10


def test_rates_count_answers_only_and_costs_every_request() -> None:
    result = LoadResult(100, {"Expired": 20}, 4.0, {}, {"worker": 0.001}, {"worker": 0.002}, {})
    assert result.requests_per_s == 20
    assert result.cpu_us("worker") == pytest.approx(30)


def test_no_two_sequences_of_ids_are_alike() -> None:
    items = make_items(LoadSpec("penstock", "", "null", "ids", "closed", num_requests=900, warm_up=100))
    assert len({item.tobytes() for item in items}) == 1000


def test_choices_are_ordered_by_their_better_time() -> None:
    times = iter([3.0, 9.0, 5.0, 1.0])
    assert fastest(["a", "b"], lambda _: next(times)) == {"b": 1.0, "a": 3.0}
    assert list(fastest([2.0, 1.0], float)) == [1.0, 2.0]


def test_memory_change_is_the_farthest_sample_in_either_direction() -> None:
    assert largest_change([100, 103, 91]) == pytest.approx(0.09)
    assert largest_change([100, 100]) == 0


def test_the_innermost_known_module_is_the_stage() -> None:
    stack = ("numpy.core:sum", "penstock.producer.wire.codec:encode", "penstock.worker.worker:_admit")
    assert stage_of(stack) == "encode and decode values"
    assert (
        stage_of(("aiokafka.producer.producer:send", "penstock.producer.transport.outbox:put")) == "aiokafka producer"
    )
    assert stage_of(("penstock.producer.wireless:x",)) == "other producer code"
    assert stage_of(("somewhere:x",)) == OTHER
    assert function_of(stack) == "numpy.core:sum"


def test_stages_add_up_to_the_measured_cost() -> None:
    stacks: Counter[Stack] = Counter({("asyncio.events:run",): 3, ("penstock.engine.null:run",): 1})
    costs = split_cost(Samples(stacks, gc_s=0.002), total_us=50.0, num_requests=100)
    assert costs == [("event loop", 22.5), (GARBAGE, 20.0), ("engine", 7.5)]
    assert sum([us for _, us in split_cost(Samples(stacks, 0.0), 50.0, 100, function_of)]) == pytest.approx(50.0)


def test_the_sampler_sees_the_function_that_works(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGPROF)
    sampler = Sampler()
    sampler.start()
    try:
        _burn(0.3)
        gc.collect()
    finally:
        sampler.stop()
        signal.signal(signal.SIGPROF, before)
    sampler.write(tmp_path / "samples.json")
    samples = read_samples(tmp_path / "samples.json")
    assert samples.gc_s > 0
    assert any("_burn" in function_of(stack) for stack in samples.stacks)


def _burn(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def test_processes_are_watched_through_proc() -> None:
    before = sum(cpu_s(os.getpid()))
    _burn(0.1)
    assert sum(cpu_s(os.getpid())) - before >= 0.08
    assert 2**20 < rss_bytes(os.getpid()) < 2**40


def test_a_process_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(ProcessFailed, match="No such role"):
        run_once("cpu.echo", {"role": "nobody"}, tmp_path / "log")
    with (
        pytest.raises(ProcessFailed, match="No such role"),
        Service("cpu.echo", {"role": "nobody"}, tmp_path / "log") as it,
    ):
        os.waitid(os.P_PID, it.pid, os.WEXITED | os.WNOWAIT)


def test_the_machine_is_described_in_json() -> None:
    machine = json.loads(json.dumps(describe_machine()))
    assert machine["cpu"]
    assert machine["versions"]["torch"]
    assert slug(machine).endswith(f"-{len(machine['cores_used'])}-cores")


def test_every_part_exists() -> None:
    for place in PARTS.values():
        module, function = place.split(":")
        source = Path(__file__).parents[2].joinpath("ops", "bench", "cpu", f"{module}.py").read_text(encoding="utf-8")
        assert f"def {function}(setup: Setup) -> PartResult:" in source
