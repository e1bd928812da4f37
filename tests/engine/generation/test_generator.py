"""Requests that join and leave: schedules, cancellation, memory that is full."""

from dataclasses import replace
from typing import Any

import pytest

from penstock.engine.generation.generator import Progress
from tests.engine.generation.helpers import (
    KINDS,
    alone,
    drain,
    options_of,
    small_generator,
    source_of,
    start,
)

pytestmark = pytest.mark.slow


def test_a_request_that_joins_late_leaves_the_others_as_they_are() -> None:
    generator = small_generator()
    start(generator, 0, 9, 0)
    first = [token for _ in range(3) for progress in generator.step() for token in progress.tokens]
    start(generator, 1, 24, 2)
    rest = drain(generator)
    assert first + rest[0] == alone(9, 0)
    assert rest[1] == alone(24, 2)


def test_a_request_cancelled_in_the_middle_gives_its_pages_back_at_once() -> None:
    generator = small_generator()
    start(generator, 0, 9, 1)
    start(generator, 1, 24, 2)
    generator.step(quantum=2)
    before = generator.num_free_pages
    assert generator.cancel(1)
    assert generator.num_free_pages == before + 6 + 3 * 3  # of 24 and of 3 * 9 positions
    assert generator.active == (0,)
    assert not generator.cancel(1)


@pytest.mark.parametrize("num_steps", range(1, 9))
def test_a_request_takes_the_pages_of_one_that_was_cancelled(num_steps: int) -> None:
    """Copies between the pages of its beams, which the next step would have made, are cancelled too."""
    generator = small_generator(num_pages=15)
    start(generator, 0, 24, 2)
    generator.step(num_steps)
    generator.cancel(0)
    start(generator, 1, 24, 2)
    assert drain(generator) == {1: alone(24, 2)}


def test_admission_waits_while_no_pages_are_free() -> None:
    """Room for one request at a time. They finish in the order in which they came."""
    generator = small_generator(num_pages=9)
    for id in range(3):
        start(generator, id, 24, 0)  # 6 and 3 pages
    order = []
    while generator.waiting or generator.active:
        order += [progress.id for progress in generator.step() if progress.finish]
        assert len(generator.active) <= 1
        assert generator.num_free_pages >= 0
    assert order == [0, 1, 2]


def test_a_large_request_is_not_overtaken_by_small_ones() -> None:
    generator = small_generator(num_pages=16)
    start(generator, 0, 9, 0)
    generator.encode()
    start(generator, 1, 24, 2)  # 15 pages
    start(generator, 2, 1, 0)
    assert generator.encode() == []
    assert generator.waiting == (1, 2)


def test_a_decoder_that_never_stops_ends_at_its_length() -> None:
    generator = small_generator()
    options = replace(options_of(max_new_tokens=50), eos_token_ids=(), forced_eos_token_ids=())
    generator.start(0, source_of(9), options)
    progress = [one for _ in range(50) for one in generator.step()]
    assert len(progress) == 50
    assert [one.finish for one in progress] == [None] * 49 + ["length"]
    assert generator.active == ()


def test_a_finish_names_its_reason() -> None:
    generator = small_generator()
    generator.start(0, source_of(9), options_of(forced_bos_token_id=2))
    assert generator.step() == [Progress(0, (2,), "stop")]


def test_beams_report_their_tokens_at_the_end() -> None:
    generator = small_generator()
    start(generator, 0, 9, 2)
    progress = [one for _ in range(9) for one in generator.step()]
    assert [one.tokens for one in progress if one.tokens] == [tuple(alone(9, 2))]
    assert progress[-1].tokens
    assert [one.finish is None for one in progress] == [True] * (len(progress) - 1) + [False]


@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_the_steps_that_ran_are_told_whatever_the_quantum(kind: int) -> None:
    def steps(quantum: int) -> list[int]:
        generator = small_generator()
        start(generator, 0, 9, kind)
        generator.encode()
        return [one.steps for _ in range(20) for one in generator.decode(quantum=quantum)]

    single = steps(1)
    assert set(single) == {1}
    several = steps(4)
    assert several == [4] * (len(single) // 4) + [len(single) % 4] * (len(single) % 4 > 0)


@pytest.mark.parametrize("kind", [{}, {"num_beams": 3}, {"do_sample": True}], ids=str)
def test_a_request_whose_options_leave_no_token_ends_alone(kind: dict[str, Any]) -> None:
    generator = small_generator()
    start(generator, 0, 9, 0)
    generator.start(1, source_of(4), options_of(forced_bos_token_id=20, suppress_tokens=[20], **kind))
    progress = generator.step()
    assert [one.finish for one in progress] == [None, "no token"]
    assert [*progress[0].tokens, *drain(generator)[0]] == alone(9, 0)
