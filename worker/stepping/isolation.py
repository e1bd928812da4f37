"""Steps that fail: run again after a pause, or in halves until those at fault are alone."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.engine.errors import DeviceFailed
from penstock.worker.batching.failure_rules import next_attempt
from penstock.worker.batching.token_budget import TokenBudget


class StepWork(NamedTuple):
    """How the members of a task run.

    Args:
        run: changes nothing of members for which it raises.
        judge: one member failed alone: finds out whether it or the engine is at fault.
        size_of: tokens of a member.
    """

    run: Callable[[Sequence[int]], None]
    judge: Callable[[int, Exception], None]
    size_of: Callable[[int], int] = lambda member: 1


class StepIsolation:
    """Runs the members of tasks, by the rules of the encoder's batches. Used by the runner's thread.

    While it pauses, nothing else of the runner runs: what may pass is a failure of the device or the machine, which
    the other steps need too.
    """

    def __init__(self, most_tokens: int, pause: Callable[[float], None] = time.sleep) -> None:
        """`most_tokens`: of a task: rows of a step count as tokens."""
        self._budget = TokenBudget(most_tokens, time.monotonic)
        self._pause = pause
        self._num_runs: Counter[int] = Counter()  # failed ones of each member

    @property
    def most_tokens(self) -> int:
        """Tokens, or rows of a step, that may run together now."""
        return self._budget.limit()

    def count(self, member: int) -> None:
        """A run of a member failed that `run` was not told of."""
        self._num_runs[member] += 1

    def take_runs(self) -> Counter[int]:
        """Failed runs of each member since the last call."""
        taken, self._num_runs = self._num_runs, Counter()
        return taken

    def run(self, members: Sequence[int], work: StepWork, error: Exception | None = None) -> None:
        """Run members together, as far as the budget of tokens allows. Raises DeviceFailed, and what `judge` raises.

        `error`: they were run together before this call, and it was raised.
        """
        if error is not None:
            self._repair(members, work, error, 0)
            return
        remaining = members
        while remaining:
            num_first = self._budget.num_first([work.size_of(member) for member in remaining])
            self._run_some(remaining[:num_first], work, 0)
            remaining = remaining[num_first:]

    def _run_some(self, members: Sequence[int], work: StepWork, num_retries: int) -> None:
        try:
            work.run(members)
            return
        except DeviceFailed:
            raise
        except Exception as raised:
            error = raised
        self._repair(members, work, error, num_retries)

    def _repair(self, members: Sequence[int], work: StepWork, error: Exception, num_retries: int) -> None:
        self._num_runs.update(members)
        num_tokens = sum([work.size_of(member) for member in members])
        attempt = next_attempt(members, error, num_retries, self._budget, num_tokens)
        if attempt is None:
            work.judge(members[0], error)
            return
        if attempt.pause_s:
            self._pause(attempt.pause_s)
        for some in attempt.parts:
            self._run_some(some, work, attempt.num_retries)
