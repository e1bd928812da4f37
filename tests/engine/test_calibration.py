"""The timing plan, and that measuring ends in time whatever the engine."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.engine import BatchOutput, NullEngine, PackedBatch, device_share, measure, warm_up
from penstock.engine import calibration as room
from penstock.engine.calibration import timing_plan
from penstock.engine.device_share import DeviceShare


class Clock:
    """`time`, moved by the engine alone."""

    def __init__(self) -> None:
        self.now = self.rested_s = 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.rested_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(room, "time", clock)
    monkeypatch.setattr(device_share, "time", clock)
    return clock


class SlowEngine(NullEngine):
    """Each batch takes a time by its shape, the first of all half a second more, and now and then one is held up."""

    def __init__(self, clock: Clock, s_per_token: float, *, padded: bool = False, hold_up_s: float = 0.0) -> None:
        super().__init__(4)
        self._info = replace(self._info, padded=padded)
        self.clock = clock
        self.s_per_token = s_per_token
        self.hold_up_s = hold_up_s
        self.seen: Counter[tuple[int, int, int]] = Counter()

    def seconds(self, tokens: int) -> float:
        return 0.001 + self.s_per_token * tokens

    def run(self, batch: PackedBatch) -> BatchOutput:
        count = len(batch.options)
        assert {wanted.task for wanted in batch.options} <= self.info.tasks
        assert batch.cu_seqlens[0] == 0
        assert np.diff(batch.cu_seqlens).min() >= 1
        assert np.diff(batch.cu_seqlens).max() == batch.max_seqlen
        seconds = self.seconds(count * batch.max_seqlen if self.info.padded else len(batch.token_ids))
        if not self.seen:
            seconds += 0.5
        self.seen[(len(batch.token_ids), batch.max_seqlen, count)] += 1
        if self.seen.total() % 7 == 0:
            seconds += self.hold_up_s
        self.clock.now += seconds
        return BatchOutput(super().run(batch).rows, seconds)


caps = st.tuples(st.integers(1, 2048), st.integers(1, 20_000))


@given(caps=caps, longest=st.integers(1, 9000), padded=st.booleans())
@example(caps=(55, 2393), longest=54, padded=False)  # random lengths add up to 57 sequences
def test_a_plan_keeps_to_the_caps_and_reaches_them(caps: tuple[int, int], longest: int, padded: bool) -> None:
    max_sequences, max_tokens = caps
    info = replace(NullEngine(4, max_tokens=longest).info, padded=padded)
    plan = timing_plan(info, *caps)
    assert len(set(plan)) == len(plan) <= 45
    assert (longest,) in plan
    assert plan == timing_plan(info, *caps)
    for lengths in plan:
        tokens = len(lengths) * max(lengths) if padded else sum(lengths)
        assert 1 <= min(lengths) <= max(lengths) <= longest
        assert len(lengths) == 1 or (len(lengths) <= max_sequences and tokens <= max_tokens)
    if max_sequences > 1 and max_tokens >= 2 * longest:
        assert max(map(sum, plan)) > max_tokens - longest or max(map(len, plan)) == max_sequences


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("max_sequences", "max_tokens"), [(256, 1024), (1024, 16_384)])
def test_a_plan_has_about_thirty_batches_of_even_and_of_mixed_lengths(
    max_sequences: int, max_tokens: int, padded: bool
) -> None:
    info = replace(NullEngine(4).info, padded=padded)
    plan = timing_plan(info, max_sequences, max_tokens)
    assert 25 <= len(plan) <= 40
    assert sum(len(set(lengths)) > 1 for lengths in plan) >= 10
    assert sum(len(set(lengths)) == 1 and len(lengths) > 1 for lengths in plan) >= 4
    assert {max(lengths) for lengths in plan} == {8, 23, 64, 181, 512}


@pytest.mark.parametrize("padded", [False, True])
def test_times_are_those_of_the_engine_though_one_run_in_seven_is_held_up(clock: Clock, padded: bool) -> None:
    engine = SlowEngine(clock, 1e-5, padded=padded, hold_up_s=0.02)
    measured = measure(engine, max_sequences=256, max_tokens=1024)
    assert len(measured.timings) == len(timing_plan(engine.info, 256, 1024))
    assert len(measured.checks) == 10
    for timing in measured.timings + measured.checks:
        size = len(timing.lengths) * max(timing.lengths) if padded else sum(timing.lengths)
        assert timing.seconds == pytest.approx(engine.seconds(size))


@given(s_per_token=st.floats(1e-7, 10.0), budget_s=st.floats(0.1, 10.0))
def test_the_budget_is_kept_to(s_per_token: float, budget_s: float) -> None:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "time", clock)
        engine = SlowEngine(clock, s_per_token)
        timings = measure(engine, max_sequences=256, max_tokens=1024, budget_s=budget_s).timings
    assert timings[0].lengths == (8,)
    assert [sum(timing.lengths) for timing in timings] == sorted(sum(timing.lengths) for timing in timings)
    smallest_s = 0.5 + 3 * engine.seconds(8)  # what one timing takes: the first run, the second, the counted one
    assert clock.now <= max(budget_s, smallest_s) + 0.6


def test_a_spent_budget_still_gives_one_timing(clock: Clock) -> None:
    engine = SlowEngine(clock, 1e-5)
    measured = measure(engine, max_sequences=8, max_tokens=512, budget_s=0.0)
    assert [timing.lengths for timing in measured.timings] == [(8,)]
    assert measured.checks == ()
    assert engine.seen == {(8, 8, 1): 3}  # the first run, the second, the counted one


def test_a_model_without_vectors_of_texts_is_measured_by_what_it_does(clock: Clock) -> None:
    engine = SlowEngine(clock, 1e-5)
    engine._info = replace(engine.info, tasks=frozenset({"embed_sparse"}))
    assert len(measure(engine, max_sequences=8, max_tokens=512, budget_s=1.0).timings) > 1


class Capturing(SlowEngine):
    """Captures a shape when it comes for the second time, as GPU graphs are."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, 1e-6)
        self._info = replace(self._info, device="GPU")

    def run(self, batch: PackedBatch) -> BatchOutput:
        output = super().run(batch)
        shape = (len(batch.token_ids), batch.max_seqlen, len(batch.options))
        if self.seen[shape] > 2:
            return output
        self.clock.now += 0.01
        return BatchOutput(output.rows, output.device_s + 0.01)


def test_what_an_engine_captures_is_captured_before_it_is_timed(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    monkeypatch.setattr(room, "_MAX_ROUNDS", 1)  # more would hide the capture behind their quartile
    engine = Capturing(clock)
    measured = measure(engine, max_sequences=1024, max_tokens=16_384)
    assert measured.timings
    for timing in measured.timings:
        assert timing.seconds == pytest.approx(engine.seconds(sum(timing.lengths)))


class CompilingEngine(SlowEngine):
    """A shape's first run takes a fifth of a second more, as on a GPU."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, 1e-7)
        self._info = replace(self._info, device="GPU")

    def run(self, batch: PackedBatch) -> BatchOutput:
        is_new = (len(batch.token_ids), batch.max_seqlen, len(batch.options)) not in self.seen
        self.clock.now += 0.2 if is_new else 0.0
        return super().run(batch)


class PreparingEngine(SlowEngine):
    """Takes as long to prepare as it is given."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, 1e-6)
        self.prepared: list[tuple[int, int, float]] = []

    def prepare(self, share: DeviceShare, *, max_sequences: int, max_tokens: int, budget_s: float) -> None:
        assert not self.seen
        self.prepared.append((max_sequences, max_tokens, budget_s))
        self.clock.now += budget_s


def test_an_engine_that_can_is_prepared_first_within_a_part_of_the_budget(clock: Clock) -> None:
    engine = PreparingEngine(clock)
    measured = measure(engine, max_sequences=16, max_tokens=1024, budget_s=10.0)
    assert engine.prepared == [(16, 1024, 3.0)]
    assert len(measured.timings) > 20
    assert clock.now <= 10.0


def test_an_engine_whose_times_are_known_is_prepared_too(clock: Clock) -> None:
    engine = PreparingEngine(clock)
    warm_up(engine, max_sequences=16, max_tokens=1024, budget_s=2.0)
    ((max_sequences, max_tokens, budget_s),) = engine.prepared
    assert (max_sequences, max_tokens) == (16, 1024)
    assert budget_s == pytest.approx(1.4)
    assert engine.seen
    assert clock.now <= 2.0


def test_the_budget_is_used_where_first_runs_are_slow_and_later_ones_quick(clock: Clock) -> None:
    engine = CompilingEngine(clock)
    calibration = measure(engine, max_sequences=256, max_tokens=16_384)
    assert clock.now <= 10.5
    assert {timing.lengths for timing in calibration.timings} == set(timing_plan(engine.info, 256, 16_384))
    assert calibration.checks


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_beside_others_a_warm_up_runs_every_shape_in_its_part_of_the_time(clock: Clock, share: float) -> None:
    engine = SlowEngine(clock, 1e-5)
    warm_up(engine, max_sequences=256, max_tokens=4096, device_share=share)
    assert clock.now - clock.rested_s == pytest.approx(share * clock.now)
    plan = timing_plan(engine.info, 256, 4096)
    assert set(engine.seen) == {(sum(lengths), max(lengths), len(lengths)) for lengths in plan}


class LoadingEngine(SlowEngine):
    """Loads kernels until its budget ends, a fifth of a second for each."""

    def prepare(self, share: DeviceShare, *, max_sequences: int, max_tokens: int, budget_s: float) -> None:
        for _ in range(round(budget_s / 0.2)):
            with share.used():
                self.clock.now += 0.2


def test_rests_between_kernels_that_are_loaded_leave_the_batches_their_budget(clock: Clock) -> None:
    engine = LoadingEngine(clock, 1e-6)
    warm_up(engine, max_sequences=16, max_tokens=1024, device_share=0.25)
    assert {size[0] for size in engine.seen} >= {8, 1024}
    assert clock.now - clock.rested_s == pytest.approx(0.25 * clock.now)
