"""Time that never steps back, made from a clock that may."""

import math


class SteadyClock:
    """Counts a step back as no time elapsed. Steady time equals the caller's until the first step back."""

    def __init__(self) -> None:
        self.ahead_s = 0.0  # of the caller's clock: the sum of all steps back
        self.latest = -math.inf  # steady moment that was read last

    def read(self, now: float) -> float:
        """Steady time at the caller's `now`. ValueError when that is no finite number."""
        if not -math.inf < now < math.inf:
            raise ValueError(f"now must be a finite number of seconds. Given: {now}")
        self.ahead_s = max(self.ahead_s, self.latest - now)
        self.latest = max(self.latest, now + self.ahead_s)
        return self.latest

    def to_caller(self, moment: float) -> float:
        """A steady moment on the caller's clock: the first at which `read` gives it, so that no wake-up is early."""
        given = moment - self.ahead_s
        return given if given + self.ahead_s >= moment else given + math.ulp(given) + math.ulp(moment)
