"""Committed offsets of a group, which a coordinator that loads does not know yet.

Since version 2 of the request, such an answer has one error for all partitions, and names none. aiokafka (0.14) reads
the errors of partitions alone: nothing would seem committed, and everything would be read and answered again. To go, it
needs to read that error.
"""

from typing import Any

from aiokafka.errors import CoordinatorNotAvailableError, NotCoordinatorError, for_code
from aiokafka.protocol.commit import OffsetFetchRequest

from penstock.producer.aiokafka_internals.heartbeats import CommonHeartbeats


class CheckedCoordinator(CommonHeartbeats):
    """A member's coordinator. aiokafka asks it again after an error that is retriable, and raises others."""

    async def _send_req(self, request: Any) -> Any:
        answer = await super()._send_req(request)
        try:
            check_offsets(request, answer)
        except (CoordinatorNotAvailableError, NotCoordinatorError):
            self.coordinator_dead()  # it is looked up again
            raise
        return answer


def check_offsets(request: Any, answer: Any) -> None:
    """Raise the KafkaError of an answer to a request for committed offsets. No effect on other answers."""
    code = getattr(answer, "error_code", 0) if isinstance(request, OffsetFetchRequest) else 0  # version 1 has none
    if code:
        raise for_code(code)(request._consumer_group)
