"""Times that the supervisor waits for a member."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemberTimeouts:
    """Tests shorten them."""

    load_s: float = 900.0  # the first start downloads the model, compiles the kernels and times the batches
    # Longer than any stall that a member recovers from by itself: a compilation, swapping, a suspended machine. Kafka
    # gives its partitions to other members after 10 s without a heartbeat, so the wait costs capacity, not answers.
    ping_s: float = 30.0
