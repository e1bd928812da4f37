"""Pauses before a member that ended is started again. Pure: times are arguments."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 64.0
HEALTHY_S = 60.0  # a member that served for so long is not blamed for what came before
SHORT_S = 10.0  # a member that served for less has failed, as one that did not start
MAX_FAILURES = 3


class RestartPolicy:
    """The pauses of one member: 1, 2, 4, … 64 s, from the beginning again after a healthy span."""

    def __init__(self) -> None:
        self._num_pauses = 0
        self._failures = 0

    def pause_s(self, served_s: float | None) -> float | None:
        """Seconds until the next start. None: give up, after the third failure in a row.

        Called once for each end that was not asked for. `served_s`: how long the member was in the group; None if it
        ended before it had joined. Both that and less than `SHORT_S` are a failure.
        """
        if served_s is None or served_s < SHORT_S:
            self._failures += 1
            if self._failures >= MAX_FAILURES:
                return None
        else:
            self._failures = 0
            if served_s >= HEALTHY_S:
                self._num_pauses = 0
        self._num_pauses += 1
        return float(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self._num_pauses - 1, 10)))
