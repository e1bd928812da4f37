"""The parts of the fetch stage: group membership, the records in memory, their bounds and their offsets."""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.producer.transport.cluster import KafkaCluster
from penstock.worker.kafka.backpressure import Backpressure
from penstock.worker.kafka.fetching.consumer import Consumer
from penstock.worker.kafka.fetching.rebalance_listener import Rebalanced
from penstock.worker.kafka.progress.offsets import OffsetTracker
from penstock.worker.requests.fetch_buffer import FetchBuffer
from penstock.worker.requests.ledger import RecordLedger
from penstock.worker.resolved_settings import ResolvedSettings


class FetchStage(NamedTuple):
    """The objects that bring records into the worker and track which are finished."""

    backpressure: Backpressure
    offsets: OffsetTracker
    ledger: RecordLedger
    fetched: FetchBuffer
    consumer: Consumer


def fetch_stage(
    settings: ResolvedSettings,
    cluster: KafkaCluster,
    topics: Sequence[str],
    *,
    number: int,
    revision: str,
    revoked: Rebalanced,
) -> FetchStage:
    """Called once, when the worker is made. `topics`: the online one and the bulk one. See `Consumer` for the rest."""
    backpressure = Backpressure(settings.max_in_flight, can_stall=settings.delivery == "at_least_once")
    offsets = OffsetTracker()
    ledger = RecordLedger(backpressure, offsets, topics[1])
    fetched = FetchBuffer(ledger, backpressure)
    consumer = Consumer(
        cluster,
        topics,
        settings.group_id,
        worker=number,
        revision=revision,
        fetch_max_wait_ms=settings.fetch_max_wait_ms,
        drain_s=settings.drain_s,
        received=fetched.put,
        revoked=revoked,
    )
    return FetchStage(backpressure, offsets, ledger, fetched, consumer)
