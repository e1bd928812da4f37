"""Permits of records in flight: as many as the limit, in the order of the callers, whatever is cancelled or refused."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.producer.errors import Expired
from penstock.producer.transport.permits import Permit, Permits

LATER = 1e9


async def waiting(permits: Permits, deadline: float = LATER) -> asyncio.Task[Permit]:
    task = asyncio.create_task(permits.wait(deadline))
    await asyncio.sleep(0)
    return task


def num_free(permits: Permits) -> int:
    """How many can be taken; they are given back."""
    taken = list(iter(permits.take, None))
    for permit in taken:
        permit.release()
    return len(taken)


async def test_the_last_holder_returns_a_permit_to_the_first_that_waits() -> None:
    permits = Permits(1)
    held = permits.take()
    assert held is not None
    first, second = await waiting(permits), await waiting(permits)
    held.retain()
    held.release()
    await asyncio.sleep(0)
    assert not first.done()
    held.release()
    taken = await first
    assert not second.done()
    taken.release()
    (await second).release()
    assert num_free(permits) == 1


async def test_a_caller_that_is_cancelled_leaves_its_turn_to_the_next() -> None:
    permits = Permits(1)
    held = permits.take()
    assert held is not None
    cancelled, next_one = await waiting(permits), await waiting(permits)
    held.release()  # the turn of the first, which has not run yet
    cancelled.cancel()
    (await next_one).release()
    assert cancelled.cancelled()
    assert num_free(permits) == 1


async def test_records_whose_deadline_is_before_another_wait_no_longer() -> None:
    permits = Permits(1)
    held = permits.take()
    assert held is not None
    early, late = await waiting(permits, 1.0), await waiting(permits, 3.0)
    permits.refuse(2.0, lambda: Expired("before"))
    with pytest.raises(Expired, match="before"):
        await early
    held.release()
    (await late).release()
    assert num_free(permits) == 1


@given(st.integers(1, 4), st.lists(st.sampled_from(["take", "wait", "cancel", "release"]), max_size=60))
def test_no_permit_is_lost_and_none_is_made(limit: int, steps: list[str]) -> None:
    async def run() -> None:
        permits, held, asking = Permits(limit), list[Permit](), list[asyncio.Task[Permit]]()
        for step in steps:
            if step == "take" and (permit := permits.take()) is not None:
                held.append(permit)
            if step == "wait" and len(held) == limit:
                asking.append(await waiting(permits))
            if step == "cancel" and asking:
                asking.pop(0).cancel()
            if step == "release" and held:
                held.pop().release()
            await asyncio.sleep(0)
            held += [one.result() for one in asking if one.done()]
            asking = [one for one in asking if not one.done()]
            assert len(held) <= limit
        for one in asking:
            one.cancel()
        await asyncio.sleep(0)
        for permit in held:
            permit.release()
        assert num_free(permits) == limit

    asyncio.run(run())
