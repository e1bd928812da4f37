"""The outbox of exactly-once delivery: it commits the answers of each input partition in transactions of its own."""

import asyncio
import contextlib
from collections.abc import Collection, Mapping, Sequence

import structlog
from aiokafka import TopicPartition
from aiokafka.errors import InvalidTransactionTimeout, TransactionalIdAuthorizationFailed

from penstock.producer.aiokafka_internals.producer import FailoverProducer
from penstock.producer.aiokafka_internals.transactional_producer import TransactionalProducer
from penstock.producer.transport.cluster import KafkaCluster, KafkaRefused
from penstock.producer.transport.connection import BACKOFF_MS, METADATA_MAX_AGE_MS, connect, disconnect
from penstock.worker.kafka.commits import LAST_COMMIT_S
from penstock.worker.kafka.fetching.consumer import Consumer
from penstock.worker.kafka.progress.offsets import OffsetTracker, PartitionProgress, Source
from penstock.worker.kafka.progress.partition_marks import PartitionMarks
from penstock.worker.replies.outlet import AnswerDropped, OutAnswer
from penstock.worker.resolved_settings import ResolvedSettings
from penstock.worker.stop_signal import watched
from penstock.worker.transactions.partition_transactions import PartitionTransactions, complete
from penstock.worker.transactions.transaction_batches import Carrier
from penstock.worker.transactions.transaction_plan import PartitionLost

# Shared by the partitions: a broker answers one request of a connection after another, and a worker may have a hundred
# partitions. Each has up to two connections to each broker.
_CARRIERS = 4

_STOP_S = 2.0
_RETRY_S = 1.0
_WAIT_S = 10.0
_HINT = (
    "The broker's transaction coordinator is not there (see transaction.state.log.replication.factor and .min.isr), or "
    "an earlier owner's transaction does not end, as one of its reply partitions has no leader."
)

log = structlog.get_logger("penstock.transactions")


class TransactionalOutbox(PartitionMarks):
    """In the place of the outbox and of the committer. Called on the worker's event loop only."""

    def __init__(
        self,
        cluster: KafkaCluster,
        consumer: Consumer,
        offsets: OffsetTracker,
        settings: ResolvedSettings,
    ) -> None:
        super().__init__()
        consumer.serve(self)
        self._cluster = cluster
        self._consumer = consumer
        self._offsets = offsets
        self._group_id = settings.group_id
        self._id_prefix = (
            f"{settings.group_id}:"  # no topic's name has a colon, so no other group and topic share an id
        )
        self._window_s = settings.transaction_window_ms / 1e3
        self._timeout_s = settings.transaction_timeout_ms / 1e3
        self._carriers: list[Carrier] = []
        self._partitions: dict[Source, PartitionTransactions] = {}
        self._acquiring: dict[Source, asyncio.Task[None]] = {}
        self._running: dict[Source, asyncio.Task[None]] = {}
        self._has_opened = False  # an assignment, once or more often

    async def start(self) -> None:
        """Connect, and log that the broker is waited for. Raises KafkaUnreachable and KafkaRefused."""
        while len(self._carriers) < _CARRIERS:
            self._carriers.append(Carrier(await connect(self._cluster, self._make_carrier)))

    async def partitions(self, topic: str) -> int:
        """Number of partitions of a topic. Raises UnknownTopicOrPartitionError."""
        first = self._carriers[0]
        return len(await first.topics.partitions(first.producer, topic))

    async def stop(self, timeout_s: float) -> None:
        """Abort what is open, and disconnect. `timeout_s` is for the answers that are held: they are committed."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._flush(), timeout_s)
        await self.release(set(self._partitions))
        await asyncio.gather(*[disconnect(carrier.producer, _STOP_S) for carrier in self._carriers])

    # Outlet

    def put(self, topic: str, partition: int | None, records: Sequence[OutAnswer]) -> None:
        """Hold answers until their partition's window is committed."""
        dropped: list[OutAnswer] = []
        for source, answers in _by_source(records).items():
            transactions = self._partitions.get(source)
            if transactions is None or source not in self._running:
                dropped += answers
            else:
                dropped += transactions.put(topic, partition, answers)
        if dropped:  # not at once: the caller is about to put more for these records
            asyncio.get_running_loop().call_soon(complete, dropped, AnswerDropped())

    # Committer

    async def run(self) -> None:
        """Nothing beside the tasks of the partitions."""

    async def commit_last(self) -> bool:
        """Commit what is answered now. Where `LAST_COMMIT_S` does not suffice, log it and return false."""
        try:
            return await asyncio.wait_for(self._flush(), LAST_COMMIT_S)
        except TimeoutError:
            log.warning("last_commit_given_up", consequence="the latest requests will be answered again")
            return False

    async def _flush(self) -> bool:
        """Commit what is answered. Returns false if a partition was lost meanwhile."""
        running = [self._partitions[source] for source, task in self._running.items() if not task.done()]
        outcomes = await asyncio.gather(*[transactions.commit() for transactions in running], return_exceptions=True)
        return not any(isinstance(outcome, BaseException) for outcome in outcomes)

    # PartitionMarks

    def _changed(self, sources: Collection[Source]) -> None:
        for source in sources:
            if source in self._running:
                self._partitions[source].hasten()

    async def _commit_marks(self, sources: Collection[Source]) -> bool:
        running = [self._partitions[source] for source in sources if source in self._running]
        are_committed = await asyncio.gather(*[transactions.commit_mark() for transactions in running])
        return len(running) == len(sources) and all(are_committed)

    # PartitionOwner

    async def acquire(self, sources: set[Source]) -> set[Source]:
        """Fence the partitions' earlier owners, so that what is committed stays as it is.

        Waits for `_WAIT_S`, then until one is fenced: a predecessor's transaction may take long to end.
        """
        for source in sources - self._acquiring.keys():
            self._partitions[source] = transactions = self._make_partition(TopicPartition(*source))
            self._acquiring[source] = asyncio.create_task(self._acquire(source, transactions))
        try:
            while self._acquiring:
                tasks = self._acquiring.values()
                done, waiting = await asyncio.wait(tasks, timeout=_WAIT_S, return_when=asyncio.FIRST_EXCEPTION)
                if waiting:
                    log.warning("transactions_waiting", prefix=self._id_prefix, num=len(waiting), hint=_HINT)
                if done:
                    break
        except asyncio.CancelledError:
            await self._give_up_acquiring()
            raise
        acquired = {source for source, task in self._acquiring.items() if task.done()}
        for source in acquired:
            self._acquiring.pop(source).result()
        return acquired

    async def _give_up_acquiring(self) -> None:
        tasks, self._acquiring = list(self._acquiring.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _acquire(self, source: Source, transactions: PartitionTransactions) -> None:
        """Raises KafkaRefused where a retry does not help.

        A worker that has opened an assignment before waits for the ACL to return.
        """
        transactional_id = self._transactional_id(source)
        while True:
            try:
                await transactions.acquire()
                return
            except TransactionalIdAuthorizationFailed as error:
                if not self._has_opened:
                    denied = f"Kafka denies the transactional id {transactional_id}."
                    raise KafkaRefused(f"{denied} It needs the ACLs WRITE and DESCRIBE.") from error
                needs = f"Its user needs the ACL WRITE on transactional ids with the prefix {self._id_prefix}"
                log.warning("transactions_not_opened", id=transactional_id, hint=needs, retry_s=_RETRY_S)
                await asyncio.sleep(_RETRY_S)
            except InvalidTransactionTimeout as error:
                raise KafkaRefused(
                    "transaction_timeout_ms is above the broker's transaction.max.timeout.ms."
                ) from error
            except Exception as error:  # of aiokafka's connections, which partitions share, not only KafkaError
                log.warning("transactions_not_opened", id=transactional_id, error=repr(error), retry_s=_RETRY_S)
                await asyncio.sleep(_RETRY_S)

    def acquired(self, sources: set[Source], committed: Mapping[Source, PartitionProgress]) -> None:
        """Go on where the last owners have committed."""
        self._has_opened = True
        self._offsets.restore(committed)
        self._take_over(committed)
        for source in sources:
            transactions = self._partitions[source]
            transactions.begin(committed[source])
            self._running[source] = watched(self._run(source, transactions))

    def skipped(self, source: Source, first: int, end: int) -> None:
        """Commit the new beginning, so that the next owner does not find the gap again."""
        if self._offsets.skip(source, first, end):
            self._changed([source])

    async def release(self, sources: set[Source]) -> None:
        """Abort what is open of these partitions, and drop the answers that are held."""
        await self._give_up_acquiring()
        tasks = [self._running.pop(source) for source in sources if source in self._running]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        closing = [self._partitions.pop(source) for source in sources if source in self._partitions]
        await asyncio.gather(*[transactions.close() for transactions in closing])
        self._forget_marks()

    async def _run(self, source: Source, transactions: PartitionTransactions) -> None:
        try:
            await transactions.run()
        except PartitionLost as lost:
            log.warning("partition_fenced", partition=f"{source[0]}-{source[1]}", reason=str(lost))
            self._running.pop(source, None)  # what comes for it is dropped from now on
            await transactions.close()
            self._consumer.rejoin()

    def _transactional_id(self, source: Source) -> str:
        return f"{self._id_prefix}{source[0]}-{source[1]}"

    def _make_partition(self, source: TopicPartition) -> PartitionTransactions:
        carrier = self._carriers[source.partition % _CARRIERS]
        transactional_id = self._transactional_id(source)
        options = {**self._cluster.arguments, "retry_backoff_ms": BACKOFF_MS}
        return PartitionTransactions(
            source,
            self._offsets,
            self,
            lambda: TransactionalProducer(options, carrier.producer, transactional_id, self._timeout_s),
            lambda: self._consumer.committed(source),
            carrier=carrier,
            group_id=self._group_id,
            window_s=self._window_s,
        )

    def _make_carrier(self) -> FailoverProducer:
        return FailoverProducer(
            **self._cluster.arguments,
            client_id="penstock-worker",
            retry_backoff_ms=BACKOFF_MS,
            metadata_max_age_ms=METADATA_MAX_AGE_MS,
        )


def _by_source(answers: Sequence[OutAnswer]) -> dict[Source, list[OutAnswer]]:
    found: dict[Source, list[OutAnswer]] = {}
    for answer in answers:
        found.setdefault(answer.origin.source, []).append(answer)
    return found
