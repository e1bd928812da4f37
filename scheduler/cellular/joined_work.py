"""How far the jobs of one device are, for predictions of when others begin."""

import math
from collections.abc import Sequence

import numpy as np

from penstock.scheduler.cellular.arrays import BEGAN, EXPECTED, RAN, WORK_S
from penstock.scheduler.cellular.types import Estimate, Float64Array, Int32Array

_LEAST_LEFT = 0.05  # of the work of a job that runs more steps than were expected


class JoinedWork:
    """Work of the online jobs that have joined, by their rows in the device's table."""

    def __init__(self) -> None:
        self._jobs: Float64Array = np.zeros((0, 6))

    def join(self, rows: Sequence[int], estimates: Sequence[Estimate]) -> None:
        """Jobs have joined."""
        if (size := max(rows) + 1) > len(self._jobs):
            self._jobs = np.concatenate([self._jobs, np.zeros((max(size, 64), 6))])
        self._jobs[rows] = [(one.raw_path_s, one.work_s, one.expected, one.asked, 0.0, math.inf) for one in estimates]

    def begin(self, rows: Int32Array, now: float) -> None:
        """These rows, of a task's nodes, are in a task."""
        self._jobs[rows, BEGAN] = np.minimum(self._jobs[rows, BEGAN], now)

    def ran(self, rows: Int32Array, steps: Int32Array) -> None:
        """Nodes of these jobs have run so many steps."""
        self._jobs[:, RAN] += np.bincount(rows, steps, len(self._jobs))

    def leave(self, rows: Sequence[int]) -> Float64Array:
        """Jobs have ended or left. Returns what is known of them [jobs, 6]."""
        jobs: Float64Array = self._jobs[rows]
        self._jobs[rows, WORK_S] = 0.0
        return jobs

    def left_s(self, order: Int32Array) -> Float64Array:
        """Predicted seconds of work that is left of these jobs, each."""
        jobs = self._jobs[order]
        left: Float64Array = jobs[:, WORK_S] * np.maximum(1 - jobs[:, RAN] / jobs[:, EXPECTED], _LEAST_LEFT)
        return left
