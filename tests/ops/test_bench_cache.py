"""The benchmark of the cache: an exact LRU beside the store, and the worker's stages without a broker."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cache import ResponseCache
from penstock.ops.bench.cache.cache_tables import CACHES, SUITE
from penstock.ops.bench.cache.in_process import Pass, in_process_worker, open_cache, random_ids, request_values
from penstock.ops.bench.cache.part_zipf import ideal_hits, run_zipf
from penstock.ops.bench.common.runs import finite
from penstock.ops.bench.common.setup import Setup


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No look-up is late, however long the machine stands still."""
    defaults = ResponseCache.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "look_up_s", 60.0)


@given(st.lists(st.integers(0, 6), max_size=40), st.integers(1, 4))
def test_a_text_is_an_ideal_hit_if_few_others_were_asked_since(draws: Sequence[int], capacity: int) -> None:
    for at, is_hit in enumerate(ideal_hits(draws, capacity)):
        earlier = list(draws[:at])
        since = earlier[::-1].index(draws[at]) if draws[at] in earlier else None
        assert is_hit == (since is not None and len(set(earlier[at - since :])) < capacity)


@pytest.mark.slow
def test_the_store_hits_as_often_as_an_ideal_lru(tmp_path: Path) -> None:
    result = run_zipf(Setup(tmp_path, tmp_path, 1, scale=0.02))
    figures = SUITE.measures({"parts": finite({"zipf": dataclasses.asdict(result)})})
    assert figures["Zipf(1.0), 10% of the bytes, points below an ideal LRU"] < 2
    assert figures["Zipf(1.0), 30% of the bytes, points below an ideal LRU"] < 2


async def test_requests_go_through_the_workers_stages_and_hit_the_second_time(tmp_path: Path) -> None:
    values = request_values(random_ids(96, seed=0), per_record=32)
    async with await open_cache(tmp_path / "cache.db") as cache, in_process_worker(cache) as stages:
        passes = []
        for _ in range(2):
            passes.append(await stages.run(values))
            await stages.write()
    assert [(one.num_sequences, one.num_cached) for one in passes] == [(96, 0), (96, 96)]


def test_the_figures_of_a_run_are_medians_over_its_rounds() -> None:
    passes = [
        dataclasses.asdict(Pass(100, cached, wall_s, 0.01)) for cached, wall_s in ((100, 1.0), (50, 2.0), (75, 4))
    ]
    loads = [{"num_requests": 110, "failures": {"x": 10}, "wall_s": 1.0, "cpu_user_s": {"worker": 0.2}}]
    loads = [{**loads[0], "cpu_system_s": {"worker": 0.1}}]
    record = {
        "parts": {
            "hits": {"details": {"in process": {"1": passes}}},
            "misses": {"details": {"null": {CACHES[0]: loads, CACHES[1]: [{**loads[0], "wall_s": 1.25}]}}},
        }
    }
    assert SUITE.measures(record) == {
        "hits in process, single records, answers/s": 50.0,
        "hits in process, single records, processor µs": 100.0,
        "hits in process, single records, share of hits": 0.75,
        "no hits, null, without a cache, answers/s": 100.0,
        "no hits, null, without a cache, processor µs": pytest.approx(3000),
        "no hits, null, with a cache, answers/s": 80.0,
        "no hits, null, with a cache, processor µs": pytest.approx(3000),
        "no hits, null, throughput lost": pytest.approx(0.2),
        "no hits, null, processor time added": 0.0,
    }
