"""The stop signal: what the event loop reports, and background work that fails, stop the worker."""

import asyncio

from penstock.worker.stop_signal import StopSignal, watched


async def test_background_work_that_fails_stops_the_worker() -> None:
    signal = StopSignal()
    asyncio.get_running_loop().set_exception_handler(signal.on_loop_error)
    failure = ValueError("no")

    async def work() -> None:
        raise failure

    await asyncio.wait([watched(work())])
    await asyncio.sleep(0)
    assert signal.is_set()
    assert signal.failure is failure


async def test_background_work_that_is_cancelled_stops_nothing() -> None:
    signal = StopSignal()
    asyncio.get_running_loop().set_exception_handler(signal.on_loop_error)
    task = watched(asyncio.Event().wait())  # type: ignore[arg-type]  # it never returns
    task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert not signal.is_set()
