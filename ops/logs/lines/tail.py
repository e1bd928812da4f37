"""The end of logs, and what is added to them: through rotation, truncation and new files of a directory."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from penstock.ops.logs.lines.blocks import LineCounts, parse_block
from penstock.ops.logs.lines.event import Event
from penstock.ops.logs.lines.filters import Filters, check_fields
from penstock.ops.logs.lines.reader import EventSelection, in_order
from penstock.ops.logs.lines.source import BLOCK_BYTES, STDIN, LineBuffer, LogSource, find_sources, of_directory

_END_BYTES = 1 << 20  # of each file that are searched for its last lines, without `since`
_MAX_WAITING = 100_000  # events that are held for their order


class FollowedFile:
    """A growing file, from its beginning or its last `_END_BYTES` on."""

    def __init__(self, path: Path, *, is_whole: bool) -> None:
        self._path = path
        self._file: IO[bytes] | None = path.open("rb")
        self._lines = LineBuffer()
        start = 0 if is_whole else os.fstat(self._file.fileno()).st_size - _END_BYTES
        if start > 0:
            self._file.seek(start)
            self._file.readline()  # a part of one

    @property
    def rest(self) -> bytes:
        """The beginning of a line that is being written."""
        return self._lines.rest

    def blocks(self) -> Iterator[bytes]:
        """The lines that were added since the last call; of a file that was moved away too, and then of the new one."""
        yield from self._added()
        if self._is_replaced():
            yield self.rest
            self.close()
            yield from self._added()

    def _added(self) -> Iterator[bytes]:
        if self._file is None:
            try:
                self._file, self._lines = self._path.open("rb"), LineBuffer()
            except OSError:
                return
        if os.fstat(self._file.fileno()).st_size < self._file.tell():  # truncated in place
            self._file.seek(0)
            self._lines = LineBuffer()
        while data := self._file.read(BLOCK_BYTES):
            yield self._lines.add(data)

    def _is_replaced(self) -> bool:
        if self._file is None:
            return False
        try:
            return not os.path.samestat(self._path.stat(), os.fstat(self._file.fileno()))
        except FileNotFoundError:  # moved away, and not made again yet
            return False

    def close(self) -> None:
        """Close the file. The next look opens it again, from its beginning."""
        if self._file is not None:
            self._file.close()
            self._file = None


class Tail:
    """The latest events of logs, and then the new ones. The caller closes it."""

    def __init__(self, names: Sequence[str], filters: Filters) -> None:
        """Raises NoEvents if a file or directory is not there."""
        self.sources, _ = find_sources(names)
        self._names = names
        self._is_whole = any(term.key == "since" for term in filters)
        self._selection = EventSelection(filters)
        self._files: dict[int, FollowedFile] = {}

    def last(self, count: int, *, is_end: bool = False) -> list[Event]:
        """The last events that pass, by time. Called once, before `follow`.

        Raises BadFilter if a filter is by a field that neither an event so far has nor a worker logs.

        Args:
            is_end: nothing is followed. Then lines without an end count, and standard input is read to its end.
                Otherwise all events of standard input are new ones.
        """
        found: list[Event] = []
        for index, source in enumerate(self.sources):
            if source.path is not None or is_end:
                kept = (event for block in self._end_of(index, source, is_end) for event in self._kept(index, block))
                found += deque(kept, maxlen=count)
        check_fields(self._selection.absent_fields)
        return in_order(found)[-count:] if count else []

    def follow(self, wait: Callable[[], None]) -> Iterator[list[Event]]:
        """New events, as long as `wait` returns. `wait` is called between two looks."""
        for index, source in enumerate(self.sources):
            if source.path is None:
                for block in source.blocks(as_they_come=True):
                    yield self._kept(index, block)
                if len(self.sources) == 1:
                    return
        while True:
            self._find_new()
            blocks = ((index, block) for index, file in self._files.items() for block in file.blocks())
            if found := [event for index, block in blocks for event in self._kept(index, block)]:
                yield in_order(found[-_MAX_WAITING:])
            wait()

    def close(self) -> None:
        """Close the files that are followed."""
        for file in self._files.values():
            file.close()

    def _end_of(self, index: int, source: LogSource, is_end: bool) -> Iterator[bytes]:
        if source.path is None or not source.is_plain():
            yield from source.blocks()
            return
        file = self._files[index] = FollowedFile(source.path, is_whole=self._is_whole)
        yield from file.blocks()
        if is_end:
            yield file.rest

    def _find_new(self) -> None:
        """Logs that have appeared in the directories."""
        known = {source.path for source in self.sources}
        directories = [Path(name) for name in self._names if name != STDIN and Path(name).is_dir()]
        for source in [source for directory in directories for source in of_directory(directory)[0]]:
            if source.path not in known and source.path is not None and source.is_plain():
                self._files[len(self.sources)] = FollowedFile(source.path, is_whole=True)
                self.sources.append(source)

    def _kept(self, index: int, block: bytes) -> list[Event]:
        parsed = parse_block(block, index, LineCounts(), self._selection.fields)
        return list(self._selection.keep(parsed, str(index)).kept())
