"""The tape of a dry run."""

from typing import Any

import pytest

from penstock.engine.memory import BufferId, Lifetime, Tape


def test_a_buffer_lives_from_the_step_that_made_it_to_the_last_that_used_it() -> None:
    tape = Tape()
    x = tape.allocate(8, "x")
    tape.step()
    y = tape.allocate(16, "y")
    tape.use(x)
    tape.step()
    tape.use(y)
    tape.step()
    tape.use(y)
    assert tape.lifetimes() == (
        Lifetime("x", first=0, last=1, bytes_per_token=8),
        Lifetime("y", first=1, last=3, bytes_per_token=16),
    )
    assert (x, y) == (0, 1)


def test_an_output_meets_its_inputs_and_nothing_later() -> None:
    tape = Tape()
    x = tape.allocate(8, "x")
    tape.step()
    y = tape.allocate(8, "y")
    tape.use(x)
    tape.step()
    tape.allocate(8, "z")
    tape.use(y)
    first, second, third = tape.lifetimes()
    assert first.meets(second)
    assert second.meets(third)
    assert not first.meets(third)


def test_sizes_follow_the_batch_in_steps_of_256_bytes() -> None:
    assert Lifetime("x", 0, 0, bytes_per_token=4).num_bytes(tokens=65) == 512
    assert Lifetime("x", 0, 0, bytes_per_token=4).num_bytes(tokens=64) == 256


def test_a_buffer_of_another_tape_is_a_bug() -> None:
    with pytest.raises(ValueError, match="never allocated"):
        Tape().use(BufferId(0))


@pytest.mark.parametrize("wrong", [{"first": -1}, {"last": -1}, {"bytes_per_token": 0}])
def test_an_impossible_lifetime_is_a_bug(wrong: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"name": "x", "first": 0, "last": 0, "bytes_per_token": 1}
    with pytest.raises(ValueError, match="This is a bug"):
        Lifetime(**fields | wrong)
