"""When the work of each block of a queue would begin, and by when everything must: asked for every newcomer."""

from collections.abc import Sequence

import numpy as np


class Timeline:
    """Blocks that run one after the other, by index. A newcomer shifts what is behind it: a few operations on arrays.

    The moment of a block is the latest for the lanes to begin with the first block, if none of its own jobs is to be
    late.
    """

    def __init__(self, work_s: Sequence[float], latest_begins: Sequence[float]) -> None:
        """[blocks] each: seconds of work, and the latest moment to begin with it for none of its jobs to be late."""
        work = np.array(work_s)
        self._starts_s = work.cumsum() - work
        self._moments = np.append(latest_begins - self._starts_s, np.inf)  # the last: behind all

    def lengthen(self, index: int, work_s: float, latest_begin: float) -> None:
        """This block has so much more work, and another latest moment to begin with it."""
        self._starts_s[index + 1 :] += work_s
        self._moments[index + 1 :] -= work_s
        self.set_latest_begin(index, latest_begin)

    def set_latest_begin(self, index: int, latest_begin: float) -> None:
        self._moments[index] = latest_begin - self._starts_s[index]

    def ahead_s(self, index: int) -> float:
        """Seconds of work of the blocks before this one."""
        return float(self._starts_s[index])

    def moment(self, index: int) -> float:
        return float(self._moments[index])

    def tightest(self, begin: int) -> int:
        """The block with the earliest moment, of those from `begin` on. Past the last there is one without jobs."""
        return begin + int(self._moments[begin:].argmin())
