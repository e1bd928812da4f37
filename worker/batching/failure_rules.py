"""The rules for a batch, or a task of steps, that failed. Both stages share them."""

import random
from enum import Enum, auto

from penstock.engine.errors import is_out_of_memory, is_transient

MAX_RETRIES = 3
_FIRST_PAUSE_S = 0.25  # then twice as long each time; each times a random factor, so that members do not retry in step


class Remedy(Enum):
    """The next attempt for sequences that ran together and failed."""

    RETRY = auto()  # run them again after `pause_s`
    SPLIT = auto()  # run halves; the budget shrinks if memory was lacking
    ISOLATE = auto()  # one that failed alone: blame it if a probe runs


def remedy_of(error: BaseException, num_sequences: int, num_retries: int) -> Remedy:
    """A failure that may pass is retried up to `MAX_RETRIES` times, a lack of memory only for one sequence alone."""
    has_room_to_shrink = is_out_of_memory(error) and num_sequences > 1
    if is_transient(error) and not has_room_to_shrink and num_retries < MAX_RETRIES:
        return Remedy.RETRY
    return Remedy.SPLIT if num_sequences > 1 else Remedy.ISOLATE


def pause_s(num_retries: int) -> float:
    """Seconds before a batch runs again that was retried so often before."""
    return _FIRST_PAUSE_S * float(2**num_retries) * random.uniform(0.5, 1.0)
