"""The stages that send answers and commit offsets, by the delivery setting."""

from collections.abc import Callable

from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.transport.outbox import Outbox
from penstock.worker.kafka.commits import Committer
from penstock.worker.kafka.consumer import Consumer
from penstock.worker.kafka.offsets import OffsetTracker
from penstock.worker.resolved_settings import ResolvedSettings
from penstock.worker.transactions.transactional_outbox import TransactionalOutbox


def delivery_stages(
    settings: ResolvedSettings,
    cluster: KafkaCluster,
    consumer: Consumer,
    offsets: OffsetTracker,
    make_outbox: Callable[..., Outbox],
) -> tuple[Outbox | TransactionalOutbox, Committer | TransactionalOutbox]:
    """The outbox and the committer, which with exactly_once are one."""
    if settings.delivery == "exactly_once":
        both = TransactionalOutbox(cluster, consumer, offsets, settings)
        return both, both
    return make_outbox(cluster, client_id="penstock-worker"), Committer(offsets, consumer)
