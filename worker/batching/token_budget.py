"""Most tokens of a batch: half after a lack of memory, and twice as many again after each quiet time."""

from collections.abc import Callable, Sequence
from itertools import accumulate

import structlog

QUIET_S = 60.0  # whatever took the memory, such as another process on the device, may be gone

log = structlog.get_logger("penstock.dispatcher")


class TokenBudget:
    """Called on the worker's event loop. `clock` returns monotonic seconds."""

    def __init__(self, max_tokens: int, clock: Callable[[], float]) -> None:
        """`max_tokens`: of a batch as the scheduler plans it."""
        self.tokens = max_tokens
        self._max_tokens = max_tokens
        self._clock = clock
        self._changed_at = clock()

    def shrink(self, failed_tokens: int) -> None:
        """A batch of so many tokens ran out of memory."""
        self.tokens = max(1, min(self.tokens, failed_tokens // 2))
        self._changed_at = self._clock()
        log.warning("token_budget_halved", failed_tokens=failed_tokens, tokens=self.tokens, of=self._max_tokens)

    def num_fitting(self, lengths: Sequence[int]) -> int:
        """Number of the first sequences of a planned batch that may run together: at least one, however long."""
        if self.tokens == self._max_tokens:  # the usual case, at no cost
            return len(lengths)
        return self.num_first(lengths)

    def limit(self) -> int:
        """Tokens that a batch may hold now."""
        self._recover()
        return self.tokens

    def num_first(self, sizes: Sequence[int]) -> int:
        """How many of the first sequences, of so many tokens each, a batch may hold now: at least one."""
        limit = self.limit()
        return max(1, sum([tokens <= limit for tokens in accumulate(sizes)]))

    def _recover(self) -> None:
        while self.tokens < self._max_tokens and self._clock() >= self._changed_at + QUIET_S:
            self.tokens = min(2 * self.tokens, self._max_tokens)
            self._changed_at += QUIET_S
            log.info("token_budget_doubled", tokens=self.tokens, of=self._max_tokens)
