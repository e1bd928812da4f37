"""The runner of generation: the tokens of the generator alone, whatever joins, leaves, fails or expires beside them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch

from penstock.engine.errors import DeviceFailed, InvalidOption, NotFinite
from penstock.engine.generation.generator import Generator, Progress
from penstock.engine.generation.limits import GeneratorLimits
from penstock.engine.generation_options import GenerationOptions
from penstock.engine.gpu.generation.seq2seq import GpuSeq2Seq
from penstock.engine.types import Int32Array
from penstock.producer.wire.messages import Generation
from penstock.scheduler.types import Cause
from penstock.worker.batching.job_runner import JobEvents
from penstock.worker.stepping.contract import StepJob
from penstock.worker.stepping.generation_runner import GenerationRunner
from penstock.worker.stepping.generation_work import GenerationWork, read_generation_row
from tests.engine.generation.helpers import SMALL, generate, model_of, sources

POISON = 77  # the token on which `Poisoned` fails


class Poisoned(Generator):
    """Raises for a batch that holds a source which begins with POISON, or always once it is `broken`."""

    broken: Exception | None = None
    bad: frozenset[int] = frozenset()
    fails_to_encode = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.quanta: list[int] = []  # of each call of `decode`

    def start(self, id: int, input_ids: Int32Array, options: GenerationOptions, seed: int = 0) -> None:
        super().start(id, input_ids, options, seed)
        if input_ids[0] == POISON:
            self.bad |= {id}

    def encode(self, ids: Any = None) -> list[int]:
        if self.broken is not None or (self.fails_to_encode and self.bad & set(ids)):
            raise self.broken or ValueError("cannot encode this")
        return super().encode(ids)

    def decode(self, ids: Any = None, quantum: int = 1) -> list[Progress]:
        self.quanta.append(quantum)
        if self.broken is not None or self.bad & set(ids):
            raise self.broken or ValueError("cannot decode this")
        return super().decode(ids, quantum)


def no_pause(seconds: float) -> None:
    """Retries come at once."""


class Bench:
    """A runner, and what it has told. With `searches`, a device chooses the tokens where it can."""

    def __init__(self, limits: GeneratorLimits = SMALL, *, searches: bool = False, max_quantum: int = 4) -> None:
        self.checkpoint = model_of("marian")[0]
        weights = self.checkpoint.weights
        self.device = GpuSeq2Seq(weights, limits, device="cpu", dtype=torch.float32) if searches else None
        self.generator = Poisoned(weights, limits, device=self.device)
        probe = GenerationWork(np.zeros(1, np.int32), self.checkpoint.options(max_new_tokens=1), 0)
        self.runner = GenerationRunner(self.generator, limits, probe, max_quantum, pause=no_pause)
        self.now = 10.0
        self.events: list[JobEvents] = []
        self.finished: dict[int, Generation] = {}
        self.failed: dict[int, BaseException] = {}
        self.runs: dict[int, int] = {}  # failed ones, of sequences that have failed

    def add(
        self, id: int, source: Int32Array, deadline: float | None = None, bulk: bool = False, **options: Any
    ) -> None:
        work = GenerationWork(source, self.checkpoint.options(**options), 0)
        self.runner.add([StepJob(id, work, self.now, deadline, bulk)])

    def add_each(self, batch: Sequence[Int32Array], **options: Any) -> None:
        """Add sources, whose ids are their places."""
        for id, source in enumerate(batch):
            self.add(id, source, **options)

    def turn(self) -> JobEvents:
        self.now += 1.0
        events = self.runner.advance(self.now)
        self.events.append(events)
        self.finished |= {id: read_generation_row(row) for id, row in events.finished}
        self.failed |= events.failed
        self.runs |= events.runs
        return events

    def drain(self) -> None:
        for _ in range(1000):
            if self.runner.is_idle:
                return
            self.turn()
        pytest.fail("The runner does not come to an end.")

    def tokens(self) -> dict[int, list[int]]:
        return {id: list(row.tokens) for id, row in self.finished.items()}

    def assert_empty(self) -> None:
        assert self.runner.is_idle
        assert (self.generator.waiting, self.generator.active) == ((), ())
        assert self.generator.num_free_pages == self.generator._limits.num_pages


WAYS: Sequence[dict[str, Any]] = (
    {"max_new_tokens": 20},
    {"max_new_tokens": 9, "num_beams": 3},
    {"max_new_tokens": 13, "do_sample": True, "temperature": 1.3, "top_k": 20},
)


@pytest.mark.slow
@pytest.mark.parametrize("searches", [False, True])
def test_tokens_are_those_of_the_generator_alone_whenever_a_sequence_joins(searches: bool) -> None:
    bench = Bench(replace(SMALL, max_rows=8, num_pages=60), searches=searches, max_quantum=8 if searches else 4)
    rng = np.random.default_rng(5)
    batch = sources(rng.integers(1, 30, 24).tolist(), seed=5)
    asked = [WAYS[number % len(WAYS)] for number in range(len(batch))]
    for id, (source, options) in enumerate(zip(batch, asked, strict=True)):
        bench.add(id, source, bulk=id % 5 == 0, **options)
        for _ in range(int(rng.integers(3))):
            bench.turn()
    bench.drain()
    alone = [generate(bench.checkpoint, [source], **options)[0] for source, options in zip(batch, asked, strict=True)]
    assert bench.tokens() == dict(enumerate(alone))
    started = [id for events in bench.events for id in events.started]
    assert sorted(started) == list(range(len(batch)))
    decoded = [one for events in bench.events if (one := events.stats) is not None and one.partition == "decode"]
    assert bench.generator.quanta == [one.sums.longest for one in decoded]  # each task is one call
    assert max(bench.generator.quanta) > 1
    longest = {id: options["max_new_tokens"] for id, options in enumerate(asked)}
    for id, row in bench.finished.items():
        assert (row.finish == "length") <= (len(row.tokens) == longest[id])
    bench.assert_empty()


def test_a_task_tells_its_rows_and_steps_and_its_prediction() -> None:
    bench = Bench()
    bench.add_each(sources([5, 9]), max_new_tokens=4, min_new_tokens=4)
    bench.drain()
    stats = [events.stats for events in bench.events if events.stats is not None]
    assert [(one.partition, one.sums.count) for one in stats] == [("encode", 2), *[("decode", 2)] * (len(stats) - 1)]
    assert stats[0].sums.tokens == 14
    assert sum(one.sums.tokens for one in stats[1:]) == 8
    assert all(one.device_s > 0 for one in stats)
    assert stats[-1].predicted_s > 0


def test_the_time_of_a_task_is_that_of_the_runs_that_did_not_fail() -> None:
    bench, now, errors = Bench(), [0.0], [OSError("busy"), OSError("busy")]
    decode = bench.generator.decode

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def flaky(ids: Any = None, quantum: int = 1) -> list[Progress]:
        sleep(1.0)
        if errors:
            raise errors.pop()
        return decode(ids, quantum)

    bench.generator.decode = flaky  # type: ignore[method-assign]  # of this instance
    probe = GenerationWork(np.zeros(1, np.int32), bench.checkpoint.options(max_new_tokens=1), 0)
    bench.runner = GenerationRunner(bench.generator, SMALL, probe, 4, clock=lambda: now[0], pause=sleep)
    bench.add_each(sources([5, 9]), max_new_tokens=4, min_new_tokens=4)
    bench.drain()
    stats = [events.stats for events in bench.events if events.stats is not None and events.stats.partition == "decode"]
    assert [one.device_s for one in stats] == pytest.approx([1.0] * len(stats))


def never(call: int) -> bool:
    return False


@pytest.mark.parametrize(
    ("fails_to_step", "fails_to_search"),
    [
        (never, lambda call: call % 2 == 0),
        (lambda call: call == 3, never),
        (lambda call: call % 3 == 1, never),
        (lambda call: call % 3 == 1, lambda call: call == 0),
    ],
    ids=["searches", "a step", "each second step", "both"],
)
def test_steps_that_fail_in_the_middle_of_a_quantum_run_again(
    fails_to_step: Callable[[int], bool], fails_to_search: Callable[[int], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequences whose tokens the device chooses run beside others. No token is lost, and none is given twice."""
    bench = Bench(replace(SMALL, max_rows=4), searches=True, max_quantum=8)
    assert bench.device is not None
    batch = sources([4, 6, 3, 8])
    ways: list[dict[str, Any]] = [{}, {"num_beams": 1, "no_repeat_ngram_size": 2}, {}, {"repetition_penalty": 1.5}]

    def flaky(run: Callable[..., Any], is_failing: Callable[[int], bool]) -> Callable[..., Any]:
        numbers = count()

        def call(*arguments: Any) -> Any:
            if is_failing(next(numbers)):
                raise RuntimeError("once")
            return run(*arguments)

        return call

    search = bench.device.search
    monkeypatch.setattr(bench.device, "step", flaky(bench.device.step, fails_to_step))
    monkeypatch.setattr(search, "run", flaky(search.run, fails_to_search))
    for id, (source, options) in enumerate(zip(batch, ways, strict=True)):
        bench.add(id, source, max_new_tokens=12, min_new_tokens=12, **options)
    bench.drain()
    assert not bench.failed
    alone = [
        generate(bench.checkpoint, [source], max_new_tokens=12, min_new_tokens=12, **options)[0]
        for source, options in zip(batch, ways, strict=True)
    ]
    assert bench.tokens() == dict(enumerate(alone))
    bench.assert_empty()


@pytest.mark.parametrize("searches", [False, True])
@pytest.mark.parametrize("fails_to_encode", [True, False])
def test_a_poisoned_sequence_fails_alone(fails_to_encode: bool, searches: bool) -> None:
    bench = Bench(searches=searches)
    bench.generator.fails_to_encode = fails_to_encode
    batch = sources([4, 6, 3, 8, 5])
    batch[2][0] = POISON
    bench.add_each(batch, max_new_tokens=7)
    bench.drain()
    assert list(bench.failed) == [2]
    assert "code this" in str(bench.failed[2])
    assert bench.tokens() == {id: generate(bench.checkpoint, [batch[id]], max_new_tokens=7)[0] for id in (0, 1, 3, 4)}
    bench.assert_empty()


@pytest.mark.parametrize("error", [ValueError("broken"), DeviceFailed("gone")], ids=repr)
def test_a_generator_that_fails_on_clean_work_is_at_fault_itself(error: Exception) -> None:
    bench = Bench()
    bench.add(0, sources([4])[0])
    bench.generator.broken = error
    with pytest.raises(type(error)):
        bench.drain()
    assert not bench.failed


def test_what_the_limits_do_not_allow_is_the_fault_of_the_request() -> None:
    bench = Bench(replace(SMALL, num_pages=20))
    small, large = sources([4, 4])
    bench.add(0, small, max_new_tokens=5)
    bench.add(1, large, max_new_tokens=60, num_beams=8)
    bench.drain()
    assert list(bench.finished) == [0]
    assert isinstance(bench.failed[1], InvalidOption)
    bench.assert_empty()


@pytest.mark.parametrize(
    "options", [{"forced_bos_token_id": 20, "suppress_tokens": [20]}, {"suppress_tokens": list(range(90))}], ids=str
)
def test_options_that_leave_no_token_are_the_fault_of_the_request(options: dict[str, Any]) -> None:
    bench = Bench()
    first, second = sources([4, 4])
    bench.add(0, first, max_new_tokens=5)
    bench.add(1, second, **options)
    bench.drain()
    assert list(bench.finished) == [0]
    assert isinstance(bench.failed[1], InvalidOption)
    bench.assert_empty()


def test_a_sequence_that_needs_more_pages_than_there_are_fails_before_others_wait_for_it() -> None:
    bench = Bench(replace(SMALL, num_pages=20))
    running, large, short = sources([4, 4, 4])
    bench.add(0, running, max_new_tokens=40, min_new_tokens=40)
    bench.turn()
    bench.add(1, large, deadline=1000.0, max_new_tokens=60, num_beams=8)
    bench.add(2, short, max_new_tokens=2)
    events = bench.turn()
    assert isinstance(events.failed[1], InvalidOption)
    assert events.started == [2]
    bench.drain()
    bench.assert_empty()


def test_a_sequence_that_streams_tells_its_tokens_so_far_and_others_do_not() -> None:
    bench = Bench()
    for id, source in enumerate(sources([4, 5, 6])):
        options = bench.checkpoint.options(max_new_tokens=8, min_new_tokens=8, num_beams=2 if id == 2 else 1)
        work = GenerationWork(source, options, 0, stream=id != 1)
        bench.runner.add([StepJob(id, work, bench.now, None, False)])
    bench.drain()
    emitted = [(id, read_generation_row(row)) for events in bench.events for id, row in events.emitted]
    assert {id for id, _ in emitted} == {0}  # beams are certain of no token before the end
    lengths = [len(row.tokens) for _, row in emitted]
    assert lengths == sorted(set(lengths))
    for _, row in emitted:
        assert row.finish == "partial"
        assert row.tokens == bench.finished[0].tokens[: len(row.tokens)]
    assert 0 < len(row.tokens) < 8
    bench.assert_empty()


def test_a_cancelled_sequence_leaves_at_the_next_step_wherever_it_is() -> None:
    bench = Bench(replace(SMALL, max_rows=1))
    first, second = sources([4, 5])
    bench.add(0, first, max_new_tokens=30, min_new_tokens=30)
    bench.add(1, second, max_new_tokens=3)
    for _ in range(3):
        bench.turn()
    bench.runner.cancel([0, 99])
    bench.drain()
    assert list(bench.finished) == [1]
    bench.add(2, first, max_new_tokens=3)
    bench.runner.cancel([2])
    bench.assert_empty()


def test_a_deadline_ends_a_sequence_that_waits_and_one_that_runs() -> None:
    bench = Bench(replace(SMALL, max_rows=1))
    first, second, third = sources([4, 5, 6])
    bench.add(0, first, deadline=15.5, max_new_tokens=60, min_new_tokens=60)
    bench.add(1, second, deadline=13.5, max_new_tokens=3)
    bench.add(2, third, deadline=9.0, max_new_tokens=3)
    bench.drain()
    expired = [rejected for events in bench.events for rejected in events.expired]
    assert [(one.id, one.cause) for one in expired] == [
        (2, Cause.ARRIVED_LATE),
        (1, Cause.QUEUED),
        (0, Cause.QUEUED),
    ]
    assert [events.started for events in bench.events if events.started] == [[0]]
    bench.assert_empty()


def test_an_online_sequence_goes_before_bulk_ones() -> None:
    bench = Bench(replace(SMALL, max_rows=4))
    batch = sources([4] * 8)
    bench.add_each(batch[:7], bulk=True, max_new_tokens=6, min_new_tokens=6)
    bench.turn()
    bench.add(7, batch[7], max_new_tokens=6, min_new_tokens=6)
    bench.drain()
    order = list(bench.finished)
    assert order.index(7) < 4


def test_a_sequence_that_finds_slots_free_joins_within_one_quantum() -> None:
    """And those that are decoded wait for one batch of the encoder between two quanta, though sources keep coming."""
    bench = Bench(replace(SMALL, max_rows=8, num_pages=200))
    batch = sources([5] * 8)
    bench.add(0, batch[0], max_new_tokens=60, min_new_tokens=60)
    for _ in range(4):
        bench.turn()
    waits = []
    for id, source in enumerate(batch[1:], 1):
        bench.add(id, source, max_new_tokens=60, min_new_tokens=60)
        waits.append(next(turn for turn in range(10) if id in bench.turn().started))
    assert max(waits) <= 1
    cells = [events.stats.partition for events in bench.events if events.stats is not None]
    assert "encode encode" not in " ".join(cells)
    bench.drain()


def test_a_batch_of_the_encoder_holds_as_many_tokens_as_allowed() -> None:
    bench = Bench(replace(SMALL, max_rows=32, num_pages=400, max_encode_tokens=20))
    lengths = [9, 9, 9, 2, 24, 5]
    bench.add_each(sources(lengths), max_new_tokens=2)
    bench.drain()
    started = [[lengths[id] for id in events.started] for events in bench.events if events.started]
    assert sorted(length for taken in started for length in taken) == sorted(lengths)
    assert all(sum(taken) <= 20 or len(taken) == 1 for taken in started)
    assert len(started) <= 4
    bench.assert_empty()


def test_a_lack_of_memory_halves_the_rows_of_a_step_and_tokens_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    step, most = bench.generator._device.step, list[int]()

    def narrow(rows: Any) -> Any:
        if len(rows.tokens) > 4:
            raise MemoryError
        most.append(len(rows.tokens))
        return step(rows)

    monkeypatch.setattr(bench.generator._device, "step", narrow)
    batch = sources([4, 6, 3, 8, 5, 7, 2, 9])
    bench.add_each(batch, max_new_tokens=7)
    bench.drain()
    assert not bench.failed
    assert bench.tokens() == {
        id: generate(bench.checkpoint, [source], max_new_tokens=7)[0] for id, source in enumerate(batch)
    }
    assert max(most) == 4


def test_a_failure_that_passes_fails_no_sequence_and_one_that_stays_tells_its_runs() -> None:
    bench = Bench()
    batch = sources([4, 6])
    batch[1][0] = POISON
    bench.add_each(batch, max_new_tokens=7)
    errors: list[Exception] = [OSError("busy"), OSError("busy")]
    decode = bench.generator.decode

    def flaky(ids: Any = None, quantum: int = 1) -> list[Progress]:
        if errors:
            raise errors.pop()
        return decode(ids, quantum)

    bench.generator.decode = flaky  # type: ignore[method-assign]  # of this instance
    bench.drain()
    assert list(bench.finished) == [0]
    assert bench.runs == {1: 4}  # twice busy, then with the other, then alone


class Overflowing(Poisoned):
    """The scores of a source that begins with POISON are NaN; those of any source once it `overflows`."""

    overflows = False

    def decode(self, ids: Any = None, quantum: int = 1) -> list[Progress]:
        bad = set(ids) if self.overflows else self.bad & set(ids)
        good = [id for id in ids if id not in bad]
        found = Generator.decode(self, good, quantum) if good else []
        for id in bad:
            self.cancel(id)
        return [*found, *[Progress(id, (), "invalid") for id in bad]]


@pytest.fixture
def overflowing(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr("tests.worker.stepping.test_generation_runner.Poisoned", Overflowing)
    return Bench()


@pytest.mark.parametrize("others", [0, 3])
def test_scores_that_are_not_finite_fail_their_sequence_alone(overflowing: Bench, others: int) -> None:
    bench = overflowing
    batch = sources([4, 6, 3, 8][: 1 + others])
    batch[0][0] = POISON
    bench.add_each(batch, max_new_tokens=7)
    bench.drain()
    assert {id: type(error) for id, error in bench.failed.items()} == {0: NotFinite}
    good = range(1, 1 + others)
    assert bench.tokens() == {id: generate(bench.checkpoint, [batch[id]], max_new_tokens=7)[0] for id in good}
    bench.assert_empty()


def test_a_generator_whose_scores_of_clean_work_are_not_finite_is_at_fault(overflowing: Bench) -> None:
    bench = overflowing
    bench.add(0, sources([4])[0])
    setattr(bench.generator, "overflows", True)  # noqa: B010 -- of the subclass
    with pytest.raises(NotFinite, match="clean work"):
        bench.drain()
