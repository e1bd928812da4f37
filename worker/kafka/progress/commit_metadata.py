"""The text that Kafka stores beside a committed offset: the topic's id, and finished offsets beyond that one.

The text is a version, the id and a bitmap, both in base64. Bit i stands for the committed offset plus i. The mark of
the partition's owner may follow (`owner_marker.py`). A commit is kept by the topic's name: by the id, the owner knows
whether it is of this topic or of one that was deleted.
"""

from base64 import b64decode, b64encode
from collections.abc import Collection

from penstock.worker.kafka.kafka_record import NO_TOPIC_ID
from penstock.worker.kafka.progress import owner_marker
from penstock.worker.kafka.progress.offsets import PartitionProgress

NO_METADATA = "more requests are answered again after a crash, and a record that ends its workers is not quarantined"

_VERSION = "penstock2:"
_MAX_CHARS = 4096  # offset.metadata.max.bytes of a broker, by default
_ID_CHARS = 25
_MAX_BITS = (
    (_MAX_CHARS - owner_marker.MAX_CHARS - len(_VERSION) - _ID_CHARS) // 4 * 3 * 8
)  # 23,952: three times the records that a worker holds by default


def of(progress: PartitionProgress) -> str:
    """Metadata of the commit of this progress, with the owner's mark."""
    marker = progress.marker
    mark = "" if marker is None else marker.text()
    return encode(progress.topic_id, progress.offset, progress.beyond) + mark


def encode(topic_id: bytes, offset: int, finished: Collection[int]) -> str:
    """Metadata of the commit of `offset`. Offsets too far beyond it are left out: they are computed again."""
    bits = [one - offset for one in finished if 0 <= one - offset < _MAX_BITS]
    if not bits and topic_id == NO_TOPIC_ID:
        return ""
    bitmap = bytearray(max(bits, default=-1) // 8 + 1)
    for bit in bits:
        bitmap[bit >> 3] |= 1 << (bit & 7)
    return f"{_VERSION}{b64encode(topic_id).decode()}:{b64encode(bitmap).decode()}"


def decode(offset: int, metadata: str) -> tuple[bytes, frozenset[int]]:
    """The topic's id, and finished offsets from `offset` on. Without metadata neither is known.

    Raises ValueError for metadata that `encode` has not written.
    """
    if not metadata:
        return NO_TOPIC_ID, frozenset()
    if not metadata.startswith(_VERSION) or len(metadata) > _MAX_CHARS:
        raise ValueError("another program's commit metadata, or another version's")
    encoded_id, _, encoded_bitmap = metadata.removeprefix(_VERSION).partition(":")
    try:
        topic_id, bitmap = b64decode(encoded_id, validate=True), b64decode(encoded_bitmap, validate=True)
    except ValueError as error:
        raise ValueError(f"commit metadata with a damaged id or bitmap: {error}") from error
    if len(topic_id) != len(NO_TOPIC_ID):
        raise ValueError("commit metadata with a damaged id")
    finished = [
        offset + 8 * place + bit for place, byte in enumerate(bitmap) if byte for bit in range(8) if byte >> bit & 1
    ]
    return topic_id, frozenset(finished)
