"""Whether the owner of a partition handed it over or died, and what it ran then: kept in the metadata of its commits.

An owner marks a partition before the first of its records runs, and removes the mark when it hands the partition over.
An owner that finds a mark follows one that died: by a signal, with its machine, or with its device.
"""

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol, Self

MAX_CHARS = 66  # of the text
_MAX_REDELIVERED = 8192  # records that an owner has in memory, by default
_TEXT = re.compile(r";(\d{1,3}),(\d{1,19}),(\d{1,19}),(\d{1,19}),([01])")


class OwnerMarker(NamedTuple):
    """The marker of one partition. A range of offsets is its first one and the one after its last."""

    deaths: int = 0  # of owners, since the records below `until` were first read
    until: int = 0  # records below it may have run in an owner that died: they are redelivered
    running: tuple[int, int] = (0, 0)  # redelivered records that run now
    alone: bool = False  # nothing else runs in their owner
    # Not in the text, but of the owner before:
    suspects: tuple[int, int] = (0, 0)  # redelivered records that ran when it died
    poison: int = -1  # the record that ran alone when it died

    def taken_over(self, offset: int, end: int | None) -> Self:
        """The mark of an owner that died, as its successor takes it.

        `offset`: up to which records are finished, or some of them. `end`: of the partition now, if it is known.
        """
        suspects, poison = (self.running, -1) if not self.alone else ((0, 0), self.running[0])
        deaths, until = min(self.deaths + 1, 999), offset + _MAX_REDELIVERED
        if end is not None:
            until = min(end, until)
        return type(self)(deaths, until, suspects=suspects, poison=poison)

    def resumed(self) -> Self:
        """The mark as the owner that committed it takes it again. It lives, so nothing that ran has ended it."""
        return self._replace(running=(0, 0), alone=False)

    def is_redelivered(self, offset: int) -> bool:
        """Whether a record may have run in an owner that died."""
        return offset < self.until

    def is_suspect(self, offset: int) -> bool:
        """Whether a record ran when the last owner died, together with few others."""
        return self.suspects[0] <= offset < self.suspects[1]

    def text(self) -> str:
        """For the metadata of a commit."""
        return f";{self.deaths},{self.until},{self.running[0]},{self.running[1]},{int(self.alone)}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `text` has written. Raises ValueError."""
        matched = _TEXT.fullmatch(text)
        if matched is None:
            raise ValueError("commit metadata with a damaged mark of its owner")
        deaths, until, first, end, alone = map(int, matched.groups())
        return cls(deaths, until, (first, end), bool(alone))


class Marks(Protocol):
    """The marks of this worker's partitions. A source is a topic and a partition."""

    @property
    def has_redelivered(self) -> bool:
        """Whether some partition was taken over from an owner that died."""

    def is_marked(self, source: tuple[str, int]) -> bool:
        """Whether a partition's mark is committed, so that its records may run."""

    def marker(self, source: tuple[str, int]) -> OwnerMarker:
        """The mark of a partition."""

    async def mark(self, marks: Mapping[tuple[str, int], OwnerMarker]) -> bool:
        """Commit these marks. Their records may run when it returns true; else try again."""

    def unname(self, sources: Collection[tuple[str, int]]) -> None:
        """Remove from the marks the names of records that have ended, with the next commit."""

    def hand_over(self) -> None:
        """Remove all marks with the last commit: this owner does not die of the records that it leaves."""
