"""One worker: it joins the group, turns its pipeline, and drains it before partitions are revoked, and at the end."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog
from aiokafka import TopicPartition

from penstock.cache import ResponseCache
from penstock.producer.tokenization import Tokenizer
from penstock.producer.wire.topics import replay_topic
from penstock.worker.batching.stage import ServedModel
from penstock.worker.end_of_topics import EndOfTopics
from penstock.worker.kafka.commits import LAST_COMMIT_S
from penstock.worker.kafka.topic_creation import create_outputs, create_topics
from penstock.worker.pipeline import Pipeline
from penstock.worker.resolved_settings import ResolvedSettings
from penstock.worker.stop_signal import StopSignal, watched
from penstock.worker.telemetry.traces import NO_TRACES, Traces

_REBALANCE_S = 2.0  # in which requests may begin that wait for a batch. All other members of the group wait meanwhile
_WITHDRAW_S = 4.0  # a member has 10 s beyond its drain; the last commit may take 3, and batches 2 to fail
_DISCONNECT_S = 2.0
LEAVE_S = LAST_COMMIT_S + _DISCONNECT_S  # after the drain: the longest that stopping takes without a broker

log = structlog.get_logger("penstock.worker")


class Worker:
    """One model, one consumer-group member. `run` does everything; `stop` asks it to drain and return."""

    def __init__(
        self,
        settings: ResolvedSettings,
        served: ServedModel,
        *,
        tokenizer: Tokenizer | None,
        cache: ResponseCache | None,
        traces: Traces = NO_TRACES,
        number: int = 0,
    ) -> None:
        """`number` is that on this machine. The caller closes `served`, `tokenizer` and `cache`, after `run`."""
        self._settings, self._info = settings, served.info
        self._stop = self.stop_signal = StopSignal()  # public for the process: errors of its event loop, readiness
        self.pipeline = Pipeline(
            settings,
            served,
            self._stop,
            self._on_revoked,
            tokenizer=tokenizer,
            cache=cache,
            traces=traces,
            number=number,
        )
        self._is_at_end = False  # with `once`: both topics were read to their ends, and all was answered
        self.consumer, self.metrics = self.pipeline.consumer, self.pipeline.metrics

    def stop(self) -> None:
        """Ask `run` to drain and return, within `drain_s` and 5 s. Called on the event loop, any number of times."""
        self._stop.ask()

    async def run(self, may_join: Awaitable[None] | None = None) -> int:
        """Join the group when `may_join` ends, and serve until `stop`. Returns the process's exit code.

        With `once` it is 0 only where both topics were read to their ends, and all is answered and committed.
        """
        path = self.pipeline
        is_started: bool | None = False
        try:
            is_started = await self._stop.unless_stopped(self._start(may_join))
        finally:
            if not is_started:
                await path.outbox.stop(0.0)
                await path.stop_routes()
        if not is_started:
            log.info("stopped", answered=0)
            return int(self._settings.once)
        background = [watched(path.committer.run()), watched(path.monitor.run()), watched(path.dispatcher.watch())]
        try:
            await self._serve()
        except Exception as error:
            self._stop.fail(error)
            raise
        finally:
            for task in background:
                task.cancel()
            is_committed = await self._shut_down()
        is_left = self._settings.once and not (self._is_at_end and is_committed)
        return int(self._stop.failure is not None or is_left)

    async def _start(self, may_join: Awaitable[None] | None) -> bool:
        """Connect, however long the broker is away. Returns true."""
        path = self.pipeline
        if may_join is not None:
            await may_join
        await path.outbox.start()
        routed = {route.input_topic: route.output_topic for route in self._settings.route_parts}
        routes = self._settings.all_routes
        replays = {one.input_topic: replay_topic(one.input_topic) for one in routes if one.accept_replays}
        requests = [topic for topic in path.topics if topic not in routed]
        await create_topics(path.cluster, path.outbox, requests, self._settings.partitions)
        await create_outputs(path.cluster, path.outbox, replays)
        await create_outputs(path.cluster, path.outbox, routed)
        await path.start_routes()
        await path.consumer.start()
        log.info("worker_ready", topic=", ".join(path.topics), model=self._info.name, tasks=self._info.request_tasks)
        return True

    async def _serve(self) -> None:
        """Serve until the worker is to stop, or with `once` until the topics have nothing new."""
        path = self.pipeline
        end = EndOfTopics(path.consumer, path.dispatcher, path.backpressure) if self._settings.once else None
        while not self._stop.is_set():
            await path.turn()
            if end is not None and await self._stop.unless_stopped(end.is_reached()):
                self._is_at_end = True
                break

    async def _on_revoked(self, sources: set[TopicPartition]) -> None:
        """Finish the batches that have begun, and what else is done soon. The next owner reads the rest again."""
        path, started, give_up = self.pipeline, time.monotonic(), self.pipeline.give_up
        drain_s = 0.0 if path.consumer.is_evicted else self._settings.drain_s  # what others answer is not finished
        path.fetched.release()
        if path.bulk_task is not None:  # it enqueues the records that it has, and takes no others
            await asyncio.wait((path.bulk_task,), timeout=drain_s)
        give_up(path.unprepared.take_back())
        give_up(path.long.take_back(begun=False))
        give_up(path.dispatcher.take_back(sources, bulk_only=True, begun=False))
        path.dispatcher.drain()
        await path.ledger.wait_until_finished(min(_REBALANCE_S, drain_s))
        give_up(path.long.take_back(begun=True))
        give_up(path.dispatcher.take_back(sources, bulk_only=False, begun=False))
        # With exactly_once answers behind a record that is given up are never acknowledged: do not wait for them.
        is_in_order = self._settings.delivery == "exactly_once"
        wait = path.ledger.wait_until_answered if is_in_order else path.ledger.wait_until_finished
        await self._finish(started, started + drain_s, wait)
        give_up(path.dispatcher.take_back(sources, bulk_only=False, begun=True))
        await self._hand_over()
        path.forget(sources)
        if not await path.withdraw_outputs(_WITHDRAW_S):
            log.warning("outputs_on_their_way", consequence="they may arrive behind newer ones of their keys")
        path.dispatcher.resume()

    async def _finish(self, started: float, until: float, wait: Callable[[float], Awaitable[bool]]) -> None:
        if self._stop.failure is None and not await wait(until - time.monotonic()):
            log.warning("drain_incomplete", unfinished=self.pipeline.ledger.num_unfinished)
        seconds = round(time.monotonic() - started, 3)
        log.info("drained", unfinished=self.pipeline.ledger.num_unfinished, seconds=seconds)

    async def _hand_over(self) -> bool:
        """Commit for the last time. Returns false without the commit."""
        self.pipeline.quarantine.hand_over()
        return await self.pipeline.committer.commit_last()

    async def _shut_down(self) -> bool:
        """Drain, commit, disconnect, in what is left of `drain_s` and `LEAVE_S`. Returns false without the commit."""
        path, started = self.pipeline, time.monotonic()
        self._stop.ask()
        drain_until = (self._stop.asked_at or started) + self._settings.drain_s
        log.info("stopping", unfinished=path.ledger.num_unfinished)
        path.fetched.release()
        path.give_up(path.unprepared.take_back())
        path.dispatcher.drain()
        await self._finish(started, drain_until, path.ledger.wait_until_finished)
        path.give_up(path.long.take_back(begun=True))
        is_committed = await self._hand_over()
        path.dispatcher.close()
        path.absent.close()
        if path.bulk_task is not None:
            path.bulk_task.cancel()
        left_s = max(_DISCONNECT_S, drain_until + LEAVE_S - time.monotonic())
        outbox = path.outbox.stop(left_s - _DISCONNECT_S)
        await asyncio.gather(path.consumer.stop(left_s), outbox, path.partials.stop())
        path.unprepared.close()
        await path.stop_routes()
        if path.cache is not None:
            await path.cache.close()
        path.monitor.log_rest(time.monotonic())
        log.info("stopped", answered=path.num_answered)
        return is_committed
