"""Figures of a stage of many steps: what waits, the time of a sequence, and the errors of predicted tasks."""

from penstock.scheduler.costs.errors import PredictionErrors
from penstock.worker.batching.batch import BatchStats
from penstock.worker.batching.flights import Flights

_WEIGHT = 0.98  # of what was seen before, at each sequence that ends


class StepLoad:
    """Implements `StageLoad`."""

    def __init__(self, flights: Flights, token_budget: int) -> None:
        self._flights = flights
        self._device_s = self._num_ended = 0.0  # decayed sums
        self._errors = PredictionErrors()
        self.token_budget = token_budget

    def observe(self, stats: BatchStats) -> None:
        """A task ran. Called on the event loop."""
        num_ended = stats.num_ended or 0
        decay = _WEIGHT**num_ended
        self._device_s = self._device_s * decay + stats.device_s
        self._num_ended = self._num_ended * decay + num_ended
        if stats.predicted_s > 0 and stats.device_s > 0:
            self._errors.note(stats.predicted_s, stats.device_s)

    @property
    def num_queued(self) -> int:
        """See `StageLoad`."""
        return self._flights.num_queued

    @property
    def queued_tokens(self) -> int:
        """See `StageLoad`."""
        return self._flights.queued_tokens

    def backlog_s(self, now: float) -> float:
        """See `StageLoad`. By the device time of a sequence among those that it runs with."""
        return len(self._flights) * (self._device_s / self._num_ended if self._num_ended else 0.0)

    def errors(self) -> tuple[float, float]:
        """See `StageLoad`."""
        return self._errors.quantiles()
