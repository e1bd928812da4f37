"""Finished offsets beyond the committed one, as the text that Kafka stores beside it: a commit's metadata.

The text is a version and a bitmap in base64. Bit i stands for the committed offset plus i. The mark of the partition's
owner may follow (`custody.py`).
"""

from base64 import b64decode, b64encode
from collections.abc import Collection

from penstock.worker.kafka.progress import custody
from penstock.worker.kafka.progress.offsets import PartitionProgress

NO_METADATA = "more requests are answered again after a crash, and a record that ends its workers is not quarantined"

_VERSION = "penstock1:"
_MAX_CHARS = 4096  # offset.metadata.max.bytes of a broker, by default
_MAX_BITS = (
    (_MAX_CHARS - custody.MAX_CHARS - len(_VERSION)) // 4 * 3 * 8
)  # 24,120: three times the records that a worker holds by default


def of(progress: PartitionProgress) -> str:
    """Metadata of the commit of this progress, with the owner's mark."""
    custody = progress.custody
    return encode(progress.offset, progress.beyond) + ("" if custody is None else custody.text())


def encode(offset: int, finished: Collection[int]) -> str:
    """Metadata of the commit of `offset`. Offsets too far beyond it are left out: they are computed again."""
    bits = [one - offset for one in finished if 0 <= one - offset < _MAX_BITS]
    if not bits:
        return ""
    bitmap = bytearray(max(bits) // 8 + 1)
    for bit in bits:
        bitmap[bit >> 3] |= 1 << (bit & 7)
    return _VERSION + b64encode(bitmap).decode()


def decode(offset: int, metadata: str) -> frozenset[int]:
    """Finished offsets from `offset` on. Raises ValueError for metadata that `encode` has not written."""
    if not metadata:
        return frozenset()
    if not metadata.startswith(_VERSION) or len(metadata) > _MAX_CHARS:
        raise ValueError("another program's commit metadata, or another version's")
    try:
        bitmap = b64decode(metadata.removeprefix(_VERSION), validate=True)
    except ValueError as error:
        raise ValueError(f"commit metadata with a damaged bitmap: {error}") from error
    return frozenset(
        [offset + 8 * place + bit for place, byte in enumerate(bitmap) if byte for bit in range(8) if byte >> bit & 1]
    )
