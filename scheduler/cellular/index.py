"""Compiled: the active jobs by id, a hash table in an array [C, 3] that other kernels fill too. C is a power of two."""

from collections.abc import Callable
from typing import TypeVar, cast

from numba.extending import register_jitable

from penstock.scheduler.cellular.arrays import JOB_ID, JOB_NUMBER, NO_JOB, NONE, PLACE
from penstock.scheduler.cellular.types import Int64Array

_Function = TypeVar("_Function", bound=Callable[..., object])
inlined = cast(Callable[[_Function], _Function], register_jitable)  # compiled with the kernel that calls it

_SPREAD = -7046029254386353131  # 2^64 / the golden ratio, as int64: products of ids in a row lie far apart


def number_of(active: Int64Array, job_id: int) -> int:
    """The number of an active job; NONE: it is not active."""
    row = find(active, job_id)
    return NONE if active[row, PLACE] == NO_JOB else int(active[row, JOB_NUMBER])


def remove_all(active: Int64Array, ids: Int64Array, removed: Int64Array) -> int:
    """Remove jobs; returns how many were active. Writes the rows of those to `removed`, one after another."""
    num_removed = 0
    for job_id in ids:
        row = find(active, job_id)
        if active[row, PLACE] != NO_JOB:
            removed[num_removed] = active[row]
            remove(active, row)
            num_removed += 1
    return num_removed


def copy(active: Int64Array, larger: Int64Array) -> None:
    """Copy all jobs to an empty index."""
    for row in range(len(active)):
        if active[row, PLACE] != NO_JOB:
            larger[find(larger, active[row, JOB_ID])] = active[row]


@inlined
def find(active: Int64Array, job_id: int) -> int:
    """The row of a job, or the free one that would be its."""
    last = len(active) - 1
    row = ((job_id * _SPREAD) >> 32) & last
    while active[row, PLACE] != NO_JOB and active[row, JOB_ID] != job_id:
        row = (row + 1) & last
    return row


@inlined
def remove(active: Int64Array, row: int) -> None:
    """Free a row. Jobs behind it move up, so that no search for one ends at a free row before it."""
    last = len(active) - 1
    free, row = row, (row + 1) & last
    while active[row, PLACE] != NO_JOB:
        first = ((active[row, JOB_ID] * _SPREAD) >> 32) & last  # row of its search
        if (row - first) & last >= (row - free) & last:
            active[free] = active[row]
            free = row
        row = (row + 1) & last
    active[free, PLACE] = NO_JOB
