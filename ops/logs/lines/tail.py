"""The end of logs, and what is added to them: through rotation, truncation and new files of a directory."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from penstock.ops.logs.lines.event import Event
from penstock.ops.logs.lines.filters import Filters, check_fields
from penstock.ops.logs.lines.parser import BlockParser, LineCounts
from penstock.ops.logs.lines.reader import in_order, model_named_by
from penstock.ops.logs.lines.source import MAX_LINE_BYTES, STDIN, LogSource, find_sources, of_directory

_END_BYTES = 1 << 20  # of each file that are searched for its last lines, without `since`
_MAX_WAITING = 100_000  # events that are held for their order


class FollowedFile:
    """A growing file. Each `read` gives the whole lines that were added since the last one."""

    def __init__(self, path: Path, position: int) -> None:
        self._path = path
        self._file: IO[bytes] | None = path.open("rb")
        self._file.seek(position)
        self._rest = b""

    def read(self) -> bytes:
        """The lines that were added; of a file that was moved away too, and then of the one in its place."""
        data = self._rest + self._more()
        if self._is_replaced():
            self.close()
            self._open()
            data += (b"\n" if data and not data.endswith(b"\n") else b"") + self._more()
        end = data.rfind(b"\n") + 1
        self._rest = data[end:] if len(data) - end <= MAX_LINE_BYTES else b""
        return data[:end]

    def _more(self) -> bytes:
        if self._file is None:
            self._open()
        if self._file is None:
            return b""
        if os.fstat(self._file.fileno()).st_size < self._file.tell():  # truncated in place
            self._file.seek(0)
            self._rest = b""
        return self._file.read()

    def _is_replaced(self) -> bool:
        if self._file is None:
            return False
        try:
            now, mine = self._path.stat(), os.fstat(self._file.fileno())
        except FileNotFoundError:  # moved away, and not made again yet
            return False
        return (now.st_dev, now.st_ino) != (mine.st_dev, mine.st_ino)

    def _open(self) -> None:
        try:
            self._file = self._path.open("rb")
        except OSError:
            self._file = None

    def close(self) -> None:
        """Close the file. A later `read` opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


class Tail:
    """The latest events of logs, and then the new ones. The caller closes it."""

    def __init__(self, names: Sequence[str], filters: Filters) -> None:
        """Raises NoEvents if a file or directory is not there."""
        self.sources, _ = find_sources(names)
        self._names = names
        self._filters = filters
        self._absent_fields = filters.fields  # that no event so far has
        self._parsers = [BlockParser(index, LineCounts()) for index in range(len(self.sources))]
        self._models: dict[tuple[int, str], str] = {}  # by source and worker
        self._files: dict[int, FollowedFile] = {}

    def last(self, count: int, *, of_stdin: bool = False) -> list[Event]:
        """The last events that pass, by time. Files are followed from here on.

        Args:
            of_stdin: read standard input to its end. Otherwise all of its events are new ones.
        """
        found: list[Event] = []
        for index, source in enumerate(self.sources):
            if source.path is not None or of_stdin:
                found += deque(self._end_of(index, source), maxlen=count)
        return in_order(found)[-count:] if count else []

    def check_filters(self) -> None:
        """Raise BadFilter if a filter is by a field that neither an event so far has nor a worker logs."""
        check_fields(self._absent_fields)

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
            found = [event for index, file in self._files.items() for event in self._kept(index, file.read())]
            if found:
                yield in_order(found[-_MAX_WAITING:])
            wait()

    def close(self) -> None:
        """Close the files that are followed."""
        for file in self._files.values():
            file.close()

    def _end_of(self, index: int, source: LogSource) -> Iterator[Event]:
        blocks = source.blocks()
        if source.path is not None and source.is_plain():
            size = source.path.stat().st_size
            if index not in self._files:
                self._files[index] = FollowedFile(source.path, size)
            if self._filters.since_s is None and size > _END_BYTES:
                blocks = _last_lines(source.path, size)
        for block in blocks:
            yield from self._kept(index, block)

    def _find_new(self) -> None:
        """Logs that have appeared in the directories."""
        known = {source.path for source in self.sources}
        for name in self._names:
            if name == STDIN or not Path(name).is_dir():
                continue
            for source in of_directory(Path(name))[0]:
                if source.path not in known and source.path is not None and source.is_plain():
                    self.sources.append(source)
                    self._parsers.append(BlockParser(len(self.sources) - 1, LineCounts()))
                    self._files[len(self.sources) - 1] = FollowedFile(source.path, 0)

    def _kept(self, index: int, block: bytes) -> list[Event]:
        kept = []
        for event in self._parsers[index].parse(block, in_rows=False).events.values():
            self._absent_fields -= event.fields.keys()
            worker = index, str(event.fields.get("worker"))
            if (model := model_named_by(event)) is not None:
                self._models[worker] = model
            if self._filters.accepts(event, self._models.get(worker)):
                kept.append(event)
        return kept


def _last_lines(path: Path, size: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(size - _END_BYTES)
        file.readline()
        yield file.read(size - file.tell())
