"""The stages that send answers and partial replies, and commit offsets, by the delivery setting."""

from collections.abc import Callable

from penstock.engine.types import ModelInfo
from penstock.producer.tokenization import Tokenizer
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.transport.outbox import Outbox
from penstock.worker.kafka.commits import Committer
from penstock.worker.kafka.fetching.consumer import Consumer
from penstock.worker.kafka.progress.offsets import OffsetTracker
from penstock.worker.replies.partial_replies import PartialReplies
from penstock.worker.replies.reply import encode_partial
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


def partial_replies(
    settings: ResolvedSettings,
    cluster: KafkaCluster,
    info: ModelInfo,
    tokenizer: Tokenizer | None,
    make_outbox: Callable[..., Outbox],
) -> PartialReplies:
    """With exactly_once none is sent: in the transaction of the answer it would be readable no earlier than the answer.

    Outside of it, a reader with read_committed would see those of an owner that is fenced.
    """
    sends = settings.delivery == "at_least_once"
    outbox = make_outbox(cluster, client_id="penstock-worker-partial") if sends else None
    return PartialReplies(outbox, lambda sequence, result: encode_partial(sequence, result, info, tokenizer))
