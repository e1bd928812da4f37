"""Contiguous ranges of a growing array, handed out and taken back."""

from collections import defaultdict


class Blocks:
    """Ranges of power-of-two sizes. A freed range serves the next request of its size; ranges never move."""

    def __init__(self) -> None:
        self.end = 0  # of the last range; the array must reach so far
        self.num_taken = 0
        self._free: defaultdict[int, list[int]] = defaultdict(list)  # size -> starts

    def take(self, length: int) -> int:
        """The start of a range of at least `length` elements."""
        size = _size(length)
        self.num_taken += 1
        if starts := self._free[size]:
            return starts.pop()
        self.end += size
        return self.end - size

    def give_back(self, start: int, length: int) -> None:
        """Free a range that `take(length)` returned."""
        self.num_taken -= 1
        self._free[_size(length)].append(start)


def _size(length: int) -> int:
    return 1 << max(0, length - 1).bit_length()
