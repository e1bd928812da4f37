"""The load generator: when calls are made, what is counted of them, and what they send."""

import asyncio
import dataclasses
import math
import signal
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.ops.bench.common.processes import ProcessFailed
from penstock.ops.bench.common.setup import shuffled_texts
from penstock.ops.bench.load.alarm import Alarm
from penstock.ops.bench.load.call_times import CallTimes, figures, recovery_s
from penstock.ops.bench.load.client_process import LoadRun, due_times
from penstock.ops.bench.load.load_bench import busiest_cores, with_costs
from penstock.ops.bench.load.loads import SHORT, Load, open_load
from penstock.ops.bench.load.payloads import is_poison, max_tokens, pool_of, with_poison
from penstock.ops.bench.pipeline import fleet_bench
from penstock.ops.bench.pipeline.fleet_bench import broker_folder
from penstock.ops.kafka import BrokerCluster, KafkaBroker

CLOSED = Load("closed", "ids", *SHORT, rows=64, callers=1, warm_s=1.0, seconds=2.0)
MESSAGES = Load("messages", "banking77", callers=7, warm_s=0.0, seconds=0.05)


class Timer:
    """The process's interval timer, and the clock: it goes off when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 50.0
        self.set_to: asyncio.Queue[float] = asyncio.Queue()
        monkeypatch.setattr(signal, "setitimer", lambda _, seconds: self.set_to.put_nowait(seconds))

    def goes_off(self, now: float) -> None:
        self.now = now
        signal.raise_signal(signal.SIGALRM)


async def test_a_wait_ends_at_its_moment_and_not_at_an_early_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = Timer(monkeypatch)
    with Alarm(lambda: timer.now) as alarm:
        await alarm.until(49.0)  # has passed
        assert timer.set_to.empty()
        waiting = asyncio.create_task(alarm.until(50.0123))
        assert await timer.set_to.get() == pytest.approx(0.0123)
        timer.goes_off(50.0110)
        assert await timer.set_to.get() == pytest.approx(0.0013)
        timer.goes_off(50.0123)
        await waiting
    assert timer.set_to.get_nowait() == 0.0  # nothing rings after the load


async def test_calls_that_are_due_within_a_millisecond_are_made_together(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = Timer(monkeypatch)
    with Alarm(lambda: timer.now) as alarm:
        waiting = asyncio.create_task(alarm.until(50.0002))
        assert await timer.set_to.get() == pytest.approx(0.001)
        timer.goes_off(50.001)
        await waiting
        await alarm.until(50.0007)
        assert timer.set_to.empty()


def test_all_clients_together_offer_the_rate_and_none_repeats_another() -> None:
    due = [due_times(open_load(1000.0, 2.0, 8.0), 100.0, number, 4) for number in range(4)]
    assert sum(map(len, due)) == pytest.approx(10_000, rel=0.05)
    assert all(100.0 <= moment < 110.0 for times in due for moment in times)
    assert all(earlier < later for times in due for earlier, later in pairwise(times))
    assert len({times[0] for times in due}) == 4


async def test_latencies_of_an_open_loop_count_from_when_a_call_was_due_even_when_the_loop_stalls() -> None:
    """A call that blocks the whole loop delays the ones after it, which were due meanwhile."""
    sent = 0

    async def call(_: list[Any]) -> list[str]:
        nonlocal sent
        sent += 1
        if sent == 1:
            time.sleep(0.2)  # noqa: ASYNC251 -- a stall of the loop is what is tested
        return []

    start = time.perf_counter()
    run = LoadRun(call, MESSAGES, [["text"]], start)
    await run.open([start + index / 1000 for index in range(50)])
    assert len(run.calls) == 50
    assert sum(finished - begun > 0.1 for begun, finished, *_ in run.calls) > 25


async def test_a_closed_loop_bounds_what_is_in_flight_and_counts_failures_and_poison_apart() -> None:
    running, most, sent = 0, 0, 0

    async def call(texts: list[Any]) -> list[str]:
        nonlocal running, most, sent
        running, sent = running + 1, sent + 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        if is_poison(texts[0]):
            raise ValueError
        if texts == ["lost"]:
            raise TimeoutError
        return ["Overloaded"] if texts == ["refused"] else []

    load = dataclasses.replace(MESSAGES, poison_every=4)
    run = LoadRun(call, load, [["good"], ["lost"], ["refused"], ["some poison"]], time.perf_counter())
    await run.closed()
    calls = CallTimes.of(run.calls)
    assert most == 7
    assert sent == len(run.calls) + run.poison.total()
    assert run.poison == {"ValueError": run.poison.total()}
    assert run.failures.keys() == {"TimeoutError", "Overloaded"}
    assert run.failures.total() == calls.failed.sum() == np.isinf(calls.latencies_s()).sum() > 0


def test_a_closed_load_counts_what_was_answered_in_the_measured_seconds() -> None:
    calls = CallTimes.of(
        [(0.0, 0.9, 64, 0), (0.5, 1.0, 64, 0), (1.5, 2.9, 60, 4), (2.4, 3.0, 64, 0), (2.5, 3.0, 64, 0)]
    )
    found = figures(CLOSED, calls)
    assert found["requests_per_s"] == (64 + 60) / 2
    assert found["not_answered"] == 4
    assert found["p50_ms"] == pytest.approx(600)
    assert math.isinf(found["p99_ms"])  # a call without all of its answers is never done


def test_an_open_load_counts_from_the_time_at_which_a_call_was_due() -> None:
    load = dataclasses.replace(open_load(2.0, 1.0, 2.0), timeout_s=0.5)
    found = figures(load, CallTimes.of([(0.5, 9.0, 1, 0), (1.0, 1.2, 1, 0), (1.5, 2.5, 1, 0), (2.9, 3.4, 0, 1)]))
    assert found["offered_per_s"] == 1.5
    assert found["answered_share"] == pytest.approx(2 / 3)
    assert found["in_time_per_s"] == 0.5


def test_recovery_ends_with_the_last_half_second_that_is_not_as_before() -> None:
    begun = np.arange(0.0, 10.0, 0.01)
    slow = ((begun >= 5.0) & (begun < 6.2)) | ((begun >= 4.5) & (begun < 5.0))  # and what was in flight at the event
    finished = begun + np.where(slow, 0.3, 0.01)
    ones, zeros = np.ones_like(begun), np.zeros_like(begun)
    assert recovery_s(CallTimes(begun, finished, ones, zeros), 0.0, 5.0, 10.0) == 1.5
    still = CallTimes(begun, np.where(begun >= 5.0, begun + 0.3, finished), ones, zeros)
    assert math.isinf(recovery_s(still, 0.0, 5.0, 10.0))
    lost = CallTimes(begun, begun + 0.01, ones, np.where(begun > 9.9, 1.0, 0.0))
    assert math.isinf(recovery_s(lost, 0.0, 5.0, 10.0))


def test_costs_are_of_a_record_and_of_all_processes_of_a_kind() -> None:
    cores = {"broker 0": 0.5, "member 0": 0.25, "member 1": 0.5, "supervisor 0": 0.25, "client 0": 0.1, "client 1": 0.2}
    record = with_costs(CLOSED, {"requests_per_s": 64_000.0, "cores": cores})
    assert record["records_per_s"] == 1000
    assert record["cpu_us"] == pytest.approx({"worker": 1000, "client": 300, "broker": 500})
    assert busiest_cores(cores) == "cores: broker 0.50, member 0.25 0.50, supervisor 0.25, client 0.20"
    with pytest.raises(ProcessFailed, match="closed: nothing was answered"):
        with_costs(CLOSED, {"requests_per_s": 0.0, "cores": cores})


def test_no_sequence_of_a_load_is_like_another() -> None:
    pools = [pool_of(dataclasses.replace(CLOSED, low=5), None, number, 2) for number in (0, 1)]
    found = [sequence.tobytes() for pool in pools for call in pool for sequence in call]
    assert len(set(found)) == len(found) == 2 * 16_384


def test_clients_share_the_messages_and_every_hundredth_is_poison() -> None:
    pools = [pool_of(dataclasses.replace(MESSAGES, rows=10), None, number, 2) for number in (0, 1)]
    texts = [text for pool in pools for call in pool for text in call]
    assert sorted(texts) == sorted(shuffled_texts(3080))
    assert [index for index, text in enumerate(with_poison(["text"] * 300, 100)) if is_poison(text)] == [50, 150, 250]
    assert not is_poison("poisonous")


def test_the_longest_sequence_of_a_model_is_its_positions_or_less(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 512}')
    assert max_tokens(tmp_path) == 512
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 256}')
    assert max_tokens(tmp_path) == 256


def test_a_broker_has_its_records_in_memory_if_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_bench, "_MEMORY", tmp_path)
    monkeypatch.setattr(fleet_bench, "_ROOM_BYTES", 1 << 60)
    assert broker_folder() is None
    monkeypatch.setattr(fleet_bench, "_ROOM_BYTES", 1 << 20)
    for free_bytes, chosen in ((1 << 20, tmp_path), ((1 << 20) - 1, None), (None, None)):
        monkeypatch.setattr(fleet_bench, "free_host_bytes", lambda free_bytes=free_bytes: free_bytes)
        assert broker_folder() == chosen
    monkeypatch.setattr(fleet_bench, "_MEMORY", tmp_path / "missing")
    assert broker_folder() is None


def test_brokers_make_their_folders_where_they_are_told(tmp_path: Path) -> None:
    nodes = [KafkaBroker(temporary_in=tmp_path), *BrokerCluster(temporary_in=tmp_path).nodes]
    assert {node.log_path.parent.parent for node in nodes} == {tmp_path}
    for node in nodes:
        node.close()
    assert not list(tmp_path.iterdir())
