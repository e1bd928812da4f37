"""The rules for a batch, or a task of steps, that failed: run again, in halves, or blame the one that is left."""

import random
from collections.abc import Sequence
from typing import NamedTuple

import structlog

from penstock.engine.errors import is_out_of_memory, is_transient
from penstock.worker.batching.token_budget import TokenBudget

MAX_RETRIES = 3
_FIRST_PAUSE_S = 0.25  # then twice as long each time; each times a random factor, so that members do not retry in step

log = structlog.get_logger("penstock.dispatcher")


class Attempt(NamedTuple):
    """How jobs that ran together and failed run next."""

    parts: Sequence[Sequence[int]]  # each runs by itself
    num_retries: int  # of each part, so far
    pause_s: float = 0.0  # before


def next_attempt(
    ids: Sequence[int],
    error: BaseException,
    num_retries: int,
    budget: TokenBudget,
    num_tokens: int,
    **logged: int,
) -> Attempt | None:
    """The next run of jobs that failed together, after so many retries. None: one failed alone.

    - A lack of memory: the halves run, and the budget shrinks.
    - Another failure that may pass: they run again, up to `MAX_RETRIES` times, after growing pauses.
    - Else the halves run. k culprits among n jobs take at most 1 + 2k·⌈log2 n⌉ runs, and k probes.
    - A job that fails alone is blamed if a probe, a run of clean work, succeeds. If not, the engine is at fault.

    `num_tokens`: of all of them. `logged`: further fields of the log events.
    """
    lacks_memory = is_out_of_memory(error)
    if is_transient(error) and num_retries < MAX_RETRIES and not (lacks_memory and len(ids) > 1):
        pause_s = _FIRST_PAUSE_S * float(2**num_retries) * random.uniform(0.5, 1.0)
        pause = round(pause_s, 3)
        log.warning("batch_retried", sequences=len(ids), error=repr(error), pause_s=pause, **logged)
        return Attempt([ids], num_retries + 1, pause_s)
    if len(ids) == 1:
        return None
    log.warning("batch_failed", sequences=len(ids), error=repr(error), **logged)
    if lacks_memory:
        budget.shrink(num_tokens)
    half = len(ids) // 2
    return Attempt([ids[:half], ids[half:]], num_retries)
