"""The stop signal: what the event loop reports, and background work that fails, stop the worker."""

import asyncio

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.producer.message_accumulator import MessageAccumulator

from penstock.worker.stop_signal import StopSignal, watched

SOURCE = TopicPartition("replies", 0)


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


async def test_the_stop_ends_a_wait_and_the_task_goes_on() -> None:
    signal = StopSignal()
    asyncio.get_running_loop().call_soon(signal.ask)
    await signal.cut_short(forever())
    await asyncio.sleep(0)  # waits as before
    assert signal.is_set()


async def test_a_stop_from_within_the_wait_ends_no_later_one() -> None:
    signal = StopSignal()

    async def ask() -> None:
        signal.ask()

    await signal.cut_short(ask())
    await asyncio.sleep(0)


async def test_the_cancellation_of_the_task_is_not_taken_for_the_stop() -> None:
    signal = StopSignal()
    task = asyncio.create_task(signal.cut_short(forever()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    signal.ask()
    assert task.cancelled()


async def test_whatever_asks_first_is_told_once() -> None:
    """The process bounds its end then: a failure must not leave a worker that waits for ever."""
    signal, asked = StopSignal(), list[bool]()
    signal.on_ask = lambda: asked.append(signal.failure is not None)
    signal.fail(ValueError("no"))
    signal.ask()
    assert asked == [True]


async def forever() -> None:
    await asyncio.Event().wait()


async def test_a_batch_that_aiokafka_fails_between_two_attempts_stops_nothing() -> None:
    """aiokafka removes it twice, and the second time raises KeyError in a callback."""
    signal = StopSignal()
    asyncio.get_running_loop().set_exception_handler(signal.on_loop_error)
    accumulator = MessageAccumulator(None, 1 << 14, 0, 1.0)
    sent = await accumulator.add_message(SOURCE, None, b"value", 1.0)
    batch = accumulator._pop_batch(SOURCE)
    accumulator.reenqueue(batch)
    accumulator.fail_all(KafkaError("no"))
    await asyncio.sleep(0)
    assert isinstance(sent.exception(), KafkaError)
    assert all(isinstance(future.exception(), KafkaError) for future in (batch.future, batch._drain_waiter))
    assert not signal.is_set()
