"""Algorithm 1 of TurboTransformers: greedy placement, by size, into the gaps of chunks."""

import sys
from bisect import insort
from collections.abc import Sequence, Set
from dataclasses import dataclass

Taken = list[tuple[int, int, int]]  # offset, end, item; by rising offset


@dataclass(frozen=True, slots=True)
class BufferPlacement:
    """The place of each item. Items that conflict are disjoint."""

    chunk: Sequence[int]  # index into the chunks; len(chunks) is the open one
    offset: Sequence[int]  # bytes from the start of its chunk
    extents: Sequence[int]  # bytes taken of each chunk, the open one last


def place_greedily(sizes: Sequence[int], conflicts: Sequence[Set[int]], chunks: Sequence[int]) -> BufferPlacement:
    """Place items of `sizes` bytes, largest first, into chunks of the given bytes or else into one open-ended chunk.

    `conflicts[i]`: the items that must not overlap item i. Offsets are sums of sizes, so aligned sizes give aligned
    offsets. In the paper's listing each item that fits nowhere gets a chunk of its own. Here all of them go into one
    open chunk, which the caller allocates at once. Larger chunks are tried first: a batch that fits into the largest
    is packed as tightly as if it were the only one.
    """
    order = sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True)
    open_chunk = len(chunks)
    by_size = sorted(range(open_chunk), key=chunks.__getitem__, reverse=True)
    tried = [(index, chunks[index]) for index in by_size] + [(open_chunk, sys.maxsize)]
    taken: list[Taken] = [[] for _ in range(open_chunk + 1)]
    chunk, offset, extents = [0] * len(sizes), [0] * len(sizes), [0] * (open_chunk + 1)
    for item in order:
        size, enemies = sizes[item], conflicts[item]
        for index, limit in tried:
            start = find_gap(size, enemies, taken[index], limit)
            if start >= 0:
                break
        else:
            raise RuntimeError(f"{size} bytes do not fit into an open chunk. This is a bug.")
        end = start + size
        insort(taken[index], (start, end, item))
        chunk[item], offset[item] = index, start
        if end > extents[index]:
            extents[index] = end
    return BufferPlacement(chunk, offset, extents)


def find_gap(size: int, enemies: Set[int], taken: Taken, limit: int) -> int:
    """FindGapFromChunk: start of the smallest gap between `enemies` that holds `size`, else their end, else -1."""
    best, smallest, previous_end = -1, sys.maxsize, 0
    for start, end, item in taken:
        if item in enemies:
            gap = start - previous_end
            if size <= gap < smallest:
                best, smallest = previous_end, gap
            if end > previous_end:
                previous_end = end
    if best < 0 and limit - previous_end >= size:
        return previous_end
    return best
