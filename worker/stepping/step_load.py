"""Measurements of a step dispatcher: the time of a sequence, and the errors of predicted tasks."""

from penstock.scheduler.costs.errors import PredictionErrors
from penstock.worker.stepping.contract import StepStats

_WEIGHT = 0.98  # of what was seen before, at each sequence that ends


class StepTimes:
    """Called on the event loop."""

    def __init__(self) -> None:
        self._device_s = self._num_ended = 0.0  # decayed sums
        self._errors = PredictionErrors()

    def observe(self, stats: StepStats, num_ended: int) -> None:
        """A task ran, with which so many sequences ended."""
        decay = _WEIGHT**num_ended
        self._device_s = self._device_s * decay + stats.device_s
        self._num_ended = self._num_ended * decay + num_ended
        if stats.predicted_s > 0 and stats.device_s > 0:
            self._errors.note(stats.predicted_s, stats.device_s)

    @property
    def seconds_a_sequence(self) -> float:
        """Device time of a sequence among those that it runs with; 0 before the first has ended."""
        return self._device_s / self._num_ended if self._num_ended else 0.0

    def errors(self) -> tuple[float, float]:
        """See `PredictionErrors.quantiles`."""
        return self._errors.quantiles()
