"""When a member is started again, and when it is given up."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.worker.supervision.restart_policy import HEALTHY_S, SHORT_S, RestartPolicy


def test_pauses_grow_to_a_minute_and_begin_again_after_a_healthy_span() -> None:
    policy = RestartPolicy()
    assert [policy.pause_s(SHORT_S) for _ in range(9)] == [1, 2, 4, 8, 16, 32, 64, 64, 64]
    assert policy.pause_s(HEALTHY_S) == 1
    assert policy.pause_s(SHORT_S) == 2


def test_three_start_failures_in_a_row_are_the_end() -> None:
    policy = RestartPolicy()
    assert [policy.pause_s(None), policy.pause_s(None), policy.pause_s(None)] == [1, 2, None]


def test_a_member_that_served_ends_the_row_of_start_failures() -> None:
    policy = RestartPolicy()
    served = (None, None, SHORT_S, None, None, SHORT_S, None, None)
    assert None not in [policy.pause_s(served_s) for served_s in served]


def test_a_member_that_joins_and_fails_at_once_is_not_started_for_ever() -> None:
    policy = RestartPolicy()
    assert [policy.pause_s(0.1), policy.pause_s(None), policy.pause_s(SHORT_S / 2)] == [1, 2, None]


@given(st.lists(st.none() | st.floats(0, 1e6), max_size=60))
def test_it_gives_up_after_three_failures_in_a_row_and_never_before(ends: list[float | None]) -> None:
    policy, in_a_row = RestartPolicy(), 0
    for served_s in ends:
        in_a_row = 0 if served_s is not None and served_s >= SHORT_S else in_a_row + 1
        pause_s = policy.pause_s(served_s)
        if in_a_row == 3:
            assert pause_s is None
            return
        assert pause_s is not None
        assert 1 <= pause_s <= 64
