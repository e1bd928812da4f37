"""Which cell type runs next, and for how many steps (BatchMaker, Algorithm 1)."""

import math
from collections.abc import Sequence

from penstock.scheduler.cellular.types import CellRule

FULL_STEPS = 8  # of a full task, if no more are needed to hide the host's time
_STRIDE = 4  # between quanta beyond it


def choose_cell(
    rules: Sequence[CellRule],
    online: Sequence[int],
    bulk: Sequence[int],
    num_running: Sequence[int],
    num_passes: Sequence[int],
) -> int | None:
    """The cell type of the next task of a device, or None where no node is ready.

    Of the types that fill a task, else of those without an outstanding task, else of all with a ready node: the one of
    the highest priority. A type that was ready but passed over `max_passes` times goes first, so none starves: of
    several the one that was passed over most often.
    `online`, `bulk`: ready nodes of each type. Those of bulk jobs count where no online node is ready.
    """
    if len(rules) == 1:
        return 0 if online[0] or bulk[0] else None
    ready = online if any(online) else bulk
    some = [cell for cell, num_ready in enumerate(ready) if num_ready]
    overdue = [
        cell
        for cell, passes in enumerate(num_passes)
        if passes >= rules[cell].max_passes and (online[cell] or (bulk[cell] and (passes or ready is bulk)))
    ]
    if overdue:
        return max(overdue, key=lambda cell: num_passes[cell])
    if len(some) < 2:
        return some[0] if some else None
    full = [cell for cell in some if ready[cell] >= rules[cell].max_rows]
    candidates = full or [cell for cell in some if not num_running[cell]] or some
    return max(candidates, key=lambda cell: (rules[cell].priority, num_passes[cell]))


def choose_quantum(rule: CellRule, num_rows: int, step_s: float, host_s: float) -> int:
    """Steps of the next task: see `least_quantum`, or the rule's longest quantum.

    A job that arrives waits for the quanta that are planned, so they are short while few rows are ready, and grow with
    the load to `FULL_STEPS` in a full task. A quantum also takes at least the `host_s` that the host needs for the
    next; only for that it is longer. It is so under light load, too: a job waits for the host once a quantum, so where
    a step costs much less than that, short quanta make every chain slower.
    """
    by_load = min(rule.max_steps, FULL_STEPS) * num_rows / rule.max_rows
    by_host = host_s / step_s if step_s > 0 else 1.0
    return min(least_quantum(math.ceil(max(by_load, by_host))), rule.max_steps)


def least_quantum(num_steps: int) -> int:
    """The least quantum of so many steps: a power of two, or a multiple of `_STRIDE` beyond `FULL_STEPS`.

    A device keeps a graph of each quantum, so they are few. Long ones lie close together: a quantum that is longer than
    the host needs makes every job wait.
    """
    if num_steps > FULL_STEPS:
        return -(-num_steps // _STRIDE) * _STRIDE
    return 1 << max(0, num_steps - 1).bit_length()
