"""The look-up stage: from sequences to the results that the cache has, and the sequences without one."""

import numpy as np

from penstock.worker.requests.request import PendingSequence, SequenceResults
from penstock.worker.requests.write_behind import WriteBehindCache


async def look_up(
    cache: WriteBehindCache | None, sequences: list[PendingSequence]
) -> tuple[SequenceResults, list[PendingSequence]]:
    """Ask the cache for all sequences in one query. Returns the hits with their results, and the misses."""
    found = {} if cache is None else await cache.get_many([one.key for one in sequences if one.is_stored])
    if not found:
        return [], sequences
    hits = [(one, np.frombuffer(found[one.key], np.float32)) for one in sequences if one.key in found]
    for sequence, _ in hits:
        sequence.request.note_cached()
    return hits, [one for one in sequences if one.key not in found]
