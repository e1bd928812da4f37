"""Calls that fail, of the device and of the choice of tokens: nothing is lost, and no token changes."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count, product
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.generation.cpu import CpuSeq2Seq
from penstock.engine.generation.generator import Generator
from penstock.engine.generation.selection import choose
from tests.engine.generation.helpers import KINDS, LENGTHS, SMALL, alone, small_generator, start
from tests.examples import examples

pytestmark = pytest.mark.slow

Moment = Literal["before", "after"]  # of the work of a call that fails
Slots = Callable[..., Any]  # those that a call writes, by its arguments

_WRITTEN: dict[str, Slots] = {
    "encode": lambda sources, slots: slots,
    "step": lambda rows: rows.slots,
    "copy_pages": lambda sources, destinations: [],
    "clear_pages": lambda pages: [],
}


class _OutOfMemoryError(Exception):
    """The error of the failing calls."""


class _FailingCalls:
    """Lets a generator's calls of the device and of `choose` fail by their number, from 0.

    A call that fails after its work has written NaN.
    """

    def __init__(self, patch: pytest.MonkeyPatch, generator: Generator, failing: Mapping[int, Moment]) -> None:
        self.num_failed = 0
        self._failing = failing
        self._numbers = count()
        device = generator._device
        assert isinstance(device, CpuSeq2Seq)
        self._memory = device._key_values.flatten(1, 2)
        for name, written in _WRITTEN.items():
            patch.setattr(device, name, self._wrap(getattr(device, name), written))
        patch.setattr("penstock.engine.generation.generator.choose", self._wrap(choose, lambda *_: []))

    def _wrap(self, run: Callable[..., Any], written: Slots) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            moment = self._failing.get(next(self._numbers))
            self.num_failed += moment is not None
            if moment == "before":
                raise _OutOfMemoryError
            result = run(*arguments)
            if moment == "after":
                self._memory[:, written(*arguments)] = torch.nan
                raise _OutOfMemoryError
            return result

        return call


class _Bench:
    """A generator whose calls fail now and then, and what it has given for each request."""

    def __init__(self, generator: Generator) -> None:
        self.generator = generator
        self.wanted: dict[int, list[int]] = {}
        self.finished: set[int] = set()
        self.tokens: dict[int, list[int]] = {}

    def start(self, length: int, kind: int) -> None:
        id = len(self.wanted)
        start(self.generator, id, length, kind)
        self.wanted[id] = alone(length, kind)

    def encode(self) -> None:
        before = self.generator.waiting, self.generator.active, self.generator.num_free_pages
        try:
            self.generator.encode()
        except _OutOfMemoryError:
            assert before == (self.generator.waiting, self.generator.active, self.generator.num_free_pages)
        self.generator.check_integrity()

    def decode(self, ids: list[int], quantum: int) -> None:
        with suppress(_OutOfMemoryError):
            for one in self.generator.decode(ids, quantum):
                self.tokens.setdefault(one.id, []).extend(one.tokens)
                assert one.finish != "invalid"
                assert one.id not in self.finished
                self.finished.update({one.id} if one.finish else ())
        self.generator.check_integrity()

    def cancel(self, id: int) -> None:
        was_here = id in self.generator.waiting or id in self.generator.active
        assert self.generator.cancel(id) == was_here
        if was_here:
            self.wanted[id] = self.tokens[id] = []
            self.finished.add(id)
        self.generator.check_integrity()

    def drain(self) -> None:
        """Give what is left again until it ends."""
        for _ in range(200):
            self.encode()
            self.decode(list(self.generator.active), 3)
        assert self.generator.waiting == self.generator.active == ()
        assert self.tokens == self.wanted


Action = tuple[str, int, int]  # what, and two numbers that it reads
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.sampled_from(LENGTHS), st.integers(0, len(KINDS) - 1)),
        st.tuples(st.just("encode"), st.just(0), st.just(0)),
        st.tuples(st.just("decode"), st.integers(0, 255), st.integers(1, 4)),
        st.tuples(st.just("cancel"), st.integers(0, 20), st.just(0)),
    ),
    min_size=4,
    max_size=25,
)
FAILING = st.dictionaries(st.integers(0, 60), st.sampled_from(("before", "after")), max_size=30)


@settings(max_examples=examples(50))
@given(ACTIONS, FAILING)
def test_whatever_joins_leaves_or_fails_each_request_has_its_own_tokens(
    actions: list[Action], failing: dict[int, Moment]
) -> None:
    """Joins at any step, decodes of any part of the active requests with any quantum, cancels; few pages.

    Any calls fail meanwhile, and the requests are given again.
    """
    generator = small_generator(num_pages=40, max_rows=7)
    bench = _Bench(generator)
    for length, kind in product(LENGTHS, range(len(KINDS))):
        alone(length, kind)  # before anything fails
    with pytest.MonkeyPatch.context() as patch:
        _FailingCalls(patch, generator, failing)
        for what, first, second in actions:
            match what:
                case "start":
                    bench.start(first, second)
                case "encode":
                    bench.encode()
                case "decode":
                    bench.decode([id for place, id in enumerate(generator.active) if first >> place & 1], second)
                case "cancel":
                    bench.cancel(first)
        bench.drain()
    assert generator.num_free_pages == 40


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", range(12))
def test_any_one_call_of_a_run_may_fail(number: int, moment: Moment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy, sampled and beam search together. Their calls are `encode`, and then three a step."""
    generator = small_generator()
    bench = _Bench(generator)
    for length, kind in ((9, 0), (4, 2), (24, 3)):
        bench.start(length, kind)
    calls = _FailingCalls(monkeypatch, generator, {number: moment})
    bench.drain()
    assert calls.num_failed == 1
    assert generator.num_free_pages == SMALL.num_pages


@pytest.mark.parametrize("ids", [[0, 0], [0, 7], [1, 0, 1]])
def test_ids_that_are_unknown_or_named_twice_change_nothing(ids: list[int]) -> None:
    generator = small_generator()
    bench = _Bench(generator)
    bench.start(9, 0)
    bench.start(4, 2)
    with pytest.raises(ValueError, match="This is a bug"):
        generator.encode(ids)
    assert generator.waiting == (0, 1)
    assert generator.num_free_pages == SMALL.num_pages
    generator.check_integrity()
    generator.encode()
    with pytest.raises(ValueError, match="This is a bug"):
        generator.decode(ids)
    generator.check_integrity()
    bench.drain()
