"""How much of the lanes bulk work may have, so that online jobs hardly notice."""

import math
from collections.abc import Sequence

import numpy as np

from penstock.scheduler.costs.cost import CostFunction
from penstock.scheduler.policies.order import Draft
from penstock.scheduler.policies.partition import Caps
from penstock.scheduler.queueing.block import Waiting
from penstock.scheduler.queueing.lateness import Lag
from penstock.scheduler.settings import SchedulerSettings

_LOAD_WINDOW_S = 0.25  # time over which the online load is averaged


class BulkShare:
    """Divides `bulk_slice_s`, what an online job may wait longer because of bulk work, among the ways that it can.

    A job may find a bulk batch running, or an online one that was filled up, and wait for its end: half of the slice.
    Its own batch may be filled up too: the other half. While a batch runs longer, online work gathers at the rate of
    the online load and makes the next batch longer by that share, and so on: 1 / (1 - load) in all. So filling stops
    as load nears 1. Load and what is filled are seconds as predicted. Where batches take longer (`Lag.slower`), for
    what the host does for them, so does what fills them, and so does what gathers meanwhile: their room is divided by
    that once for each.
    """

    def __init__(self, settings: SchedulerSettings, lag: Lag) -> None:
        self._slice_s = settings.bulk_slice_s
        self._lag = lag
        self._quiet_s = settings.bulk_quiet_s
        self._load = 0.0  # seconds of online work that come in a second, as of `_came_at`
        self._came_at = -math.inf
        self._load_of_plan = 0.0  # the same, but only between the last two plans
        self._planned_at = -math.inf
        self._credit_s = 0.0

    def online_came(self, work_s: float, now: float) -> None:
        """Online jobs came that keep all lanes busy for `work_s`."""
        self._load = self._load_at(now) + work_s / _LOAD_WINDOW_S
        self._came_at = now

    def online_planned(self, work_s: float, now: float) -> None:
        """So much had gathered since the last plan."""
        elapsed_s = now - self._planned_at
        self._load_of_plan = min(1.0, work_s / elapsed_s) if elapsed_s > 0 else 1.0
        self._planned_at = now

    def is_quiet(self, now: float) -> bool:
        """Whether no online job came for so long that bulk may have the lanes to itself."""
        return now - self._came_at >= self._quiet_s

    @property
    def alone_s(self) -> float:
        """Longest batch of bulk jobs alone, while online jobs come."""
        return self._slice_s / 2

    def growth_s(self, now: float) -> float:
        """How much longer the online batch that was planned last may run with bulk jobs in it.

        What is not spent is saved up to a whole slice, so that the turn of a long bulk job comes too.
        """
        # The average is steady, the last gap tells of a burst at once.
        load = max(self._load_at(now), self._load_of_plan)
        share = max(0.0, 1 - load) / self._lag.slower**2
        self._credit_s = min(self._slice_s, self._credit_s + share * self._slice_s / 2)
        return self._credit_s

    def grown(self, seconds: float) -> None:
        """By so much the batch was made longer."""
        self._credit_s = max(0.0, self._credit_s - seconds)

    def _load_at(self, now: float) -> float:
        return self._load * math.exp((self._came_at - now) / _LOAD_WINDOW_S)


def fill(draft: Draft, bulk: Sequence[Waiting], cost: CostFunction, caps: Caps, max_seconds: float) -> Draft:
    """The batch with as many of the first bulk jobs as still run within the caps and `max_seconds`."""
    own = np.array([job.num_tokens for job in draft.jobs], np.float64)
    guests = np.array([job.num_tokens for job in bulk[: caps.max_sequences - len(own)]], np.float64)
    tokens = own.sum() + np.cumsum(guests)
    squares = own @ own + np.cumsum(guests * guests)
    longest = np.maximum(own.max(), np.maximum.accumulate(guests))
    count = np.arange(len(own) + 1.0, len(own) + len(guests) + 1)
    seconds = np.broadcast_to(cost.seconds(tokens, squares, longest, count), count.shape)
    used = longest * count if cost.padded else tokens
    fits = np.append((used <= caps.max_tokens) & (seconds <= max_seconds), False)
    num = int(np.argmin(fits))  # the first that does not fit
    return Draft([*draft.jobs, *bulk[:num]], float(seconds[num - 1])) if num else draft
