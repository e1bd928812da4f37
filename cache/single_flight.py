"""Single flight: of identical requests in flight together, one is computed and all are answered."""

from collections.abc import Hashable
from typing import Generic, TypeVar

Waiter = TypeVar("Waiter")


class SingleFlight(Generic[Waiter]):
    """Who waits for which computation. Pure and synchronous: it holds waiters and never calls them.

    Owned by one event loop; no locks. For each key the first `join` makes its caller the leader, who must compute the
    answer and then end the flight with `finish`, exactly once. Joins in between are followers. Joins after it start a
    new flight: the answer is in the cache by then, or the computation failed and may be tried again.
    """

    def __init__(self) -> None:
        self._flights: dict[Hashable, list[Waiter]] = {}

    def __len__(self) -> int:
        """How many keys are in flight."""
        return len(self._flights)

    def __contains__(self, key: Hashable) -> bool:
        """Whether this key is in flight."""
        return key in self._flights

    def join(self, key: Hashable, waiter: Waiter) -> bool:
        """Wait for `key`. True: the caller is the leader and must compute it; `waiter` is not kept, it has the answer
        first. False: `waiter` is handed out when the leader ends the flight."""
        followers = self._flights.get(key)
        if followers is None:
            self._flights[key] = []
            return True
        followers.append(waiter)
        return False

    def finish(self, key: Hashable) -> list[Waiter]:
        """End the flight, with an answer or without. Returns the followers, in the order they joined.

        A failure is the leader's, and it may be the leader's alone (its deadline, its partition revoked): the caller
        decides whether the followers get the same error or one of them leads a new flight.

        Raises:
            KeyError: the key is not in flight: it was ended twice, or never begun.
        """
        followers = self._flights.pop(key, None)
        if followers is None:
            raise KeyError(f"No flight of {key!r} to end. This is a bug.")
        return followers
