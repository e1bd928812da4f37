"""Sources of logs: files, directories, gzip and zstd, stdin. Each source gives blocks of whole lines."""

import codecs
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from penstock.ops.logs.errors import NoEvents
from penstock.ops.logs.libraries import pyarrow
from penstock.producer.files.standard_streams import STANDARD, end_input, open_input

STDIN = str(STANDARD)
BLOCK_BYTES = 8 << 20
MAX_LINE_BYTES = 1 << 20  # the longest line of a worker, with a trace, has some kilobytes
_SNIFF_BYTES = 1 << 16
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_ROTATED = re.compile(r"([.-]\d+)*(\.gz|\.zst)?$")
_MIN_YEAR = 1970  # a lower number in a name counts rotations
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


class LineBuffer:
    """Makes blocks of whole lines of data that is cut anywhere.

    A longer line than `MAX_LINE_BYTES` that spans blocks is counted and left out.
    """

    def __init__(self) -> None:
        self.rest = b""  # of a line without an end
        self.num_long = 0
        self._is_skipping = False

    def add(self, data: bytes) -> bytes:
        """The lines that end in the data."""
        if self._is_skipping:
            _, end, data = data.partition(b"\n")
            self._is_skipping = not end
        whole, end, self.rest = (self.rest + data).rpartition(b"\n")
        if len(self.rest) > MAX_LINE_BYTES:
            self.num_long += 1
            self.rest, self._is_skipping = b"", True
        return whole + end


@dataclass(slots=True)
class LogSource:
    """One log. The notes say what could not be read of it."""

    name: str  # for the screen
    path: Path | None  # None: stdin
    num_bytes: int = 0  # read so far, as stored
    num_long_lines: int = 0
    notes: list[str] = field(default_factory=list)

    def blocks(self, *, as_they_come: bool = False) -> Iterator[bytes]:
        """Whole lines, about `BLOCK_BYTES` at a time, decompressed and in UTF-8. The last line may lack its end.

        What cannot be read ends the source with a note.

        `as_they_come`: lines of a pipe, as soon as they are written.
        """
        try:
            with self._open() as file:
                yield from self._whole_lines(file, as_they_come)
        except OSError as error:
            self.notes.append(error.strerror or str(error).partition("\n")[0])

    def close(self) -> None:
        """End a read that waits for more of standard input."""
        if self.path is None:
            end_input()

    def holds_events(self) -> bool:
        """Whether the first kilobytes have an event, or the file cannot be read, which its reader then says."""
        try:
            with self._open() as file:
                head = next(self._decoded(file, _SNIFF_BYTES, as_they_come=False), b"")
        except OSError:
            return True
        return any(mark in head for mark in (b'"event":', b'"MESSAGE"', b'"ecs.version"'))

    def is_plain(self) -> bool:
        """Whether it is a file that is neither compressed nor in UTF-16."""
        if self.path is None:
            return False
        with self.path.open("rb") as file:
            return _compression(file) is None and file.peek(2)[:2] not in _UTF16

    def _open(self) -> io.BufferedReader:
        file = open_input(self.path or STANDARD)
        return file if isinstance(file, io.BufferedReader) else io.BufferedReader(file)  # type: ignore[arg-type]

    def _whole_lines(self, file: io.BufferedReader, as_they_come: bool) -> Iterator[bytes]:
        lines = LineBuffer()
        for data in self._decoded(file, BLOCK_BYTES, as_they_come=as_they_come):
            if whole := lines.add(data):
                yield whole
        self.num_long_lines += lines.num_long
        if lines.rest:
            yield lines.rest

    def _decoded(self, file: io.BufferedReader, size: int, *, as_they_come: bool) -> Iterator[bytes]:
        """The bytes as UTF-8, without a byte order mark."""
        chunks = self._unpacked(file, size, as_they_come)
        first = next(chunks, b"")
        encoding = _UTF16.get(first[:2])
        if encoding is None:
            yield first.removeprefix(codecs.BOM_UTF8)
            yield from chunks
            return
        decoder = codecs.getincrementaldecoder(encoding)("replace")
        for chunk in chain([first[2:]], chunks):
            yield decoder.decode(chunk).encode("utf-8", "replace")

    def _unpacked(self, file: io.BufferedReader, size: int, as_they_come: bool) -> Iterator[bytes]:
        """The bytes, decompressed. Of damaged data those before the damage, and a note."""
        compression = _compression(file)
        if compression is None:
            while data := file.read1(size) if as_they_come else file.read(size):
                self.num_bytes += len(data)
                yield data
            return
        stream = pyarrow.CompressedInputStream(pyarrow.PythonFile(file, "r"), compression)
        is_whole = True
        while is_whole:
            buffer = bytearray(size)
            try:
                data = bytes(memoryview(buffer)[: stream.readinto(buffer)])
            except OSError:
                # The buffer has what came before the damage; zero bytes at its end are not of a text.
                data, is_whole = bytes(buffer.rstrip(b"\0")), False
                self.notes.append(f"its {compression} data ends early or is damaged; it was read up to there")
            self.num_bytes = file.tell() if file.seekable() else self.num_bytes + len(data)
            if not data:
                return
            yield data


def _compression(file: io.BufferedReader) -> str | None:
    """The compression of a log, by its first bytes, which stay to be read; None for text."""
    first = file.peek(4)
    return next((name for magic, name in _COMPRESSIONS.items() if first.startswith(magic)), None)


def find_sources(names: Sequence[str]) -> tuple[list[LogSource], list[str]]:
    """The logs behind the arguments, and the files of directories that are left out, because no line is an event.

    The files of a rotated log follow one another, oldest first, because what a worker says of itself comes first.
    Raises NoEvents if an argument does not exist, or nothing is left to read.
    """
    sources, skipped = [], []
    for name in names:
        path = Path(name)
        if name == STDIN:
            sources.append(LogSource("stdin", None))
        elif path.is_dir():
            found, others = of_directory(path)
            sources += found
            skipped += others
        elif path.exists():
            sources.append(LogSource(path.name, path))
        else:
            raise NoEvents(f"There is no file or directory {name}. Standard input is '-'.")
    if not sources:
        left_out = f" {len(skipped)} other files are there." if skipped else ""
        raise NoEvents(f"No log of penstock is in {', '.join(names)}.{left_out}")
    for name in {source.name for source in sources if source.path is not None}:
        alike = [source for source in sources if source.name == name]
        for source, shown in zip(alike, told_apart([source.path or STANDARD for source in alike]), strict=True):
            source.name = shown
    logs: dict[tuple[Path | None, str], int] = {}
    places = [logs.setdefault((one.path and one.path.parent, origin(one.name)), len(logs)) for one in sources]
    ordered = sorted(zip(places, sources, strict=True), key=lambda one: (one[0], _age(one[1].name)))
    return [source for _, source in ordered], skipped


def origin(name: str) -> str:
    """A log's name without the suffixes of rotation and compression."""
    return _ROTATED.sub("", name) or name


def _age(name: str) -> tuple[bool, list[int]]:
    """Sorts the names of a rotated log, oldest first: numbers fall, dates rise, the name without any is the last."""
    found = _ROTATED.search(name)
    numbers = [int(one) for one in re.findall(r"\d+", found[0] if found else "")]
    is_date = bool(numbers) and numbers[0] >= _MIN_YEAR
    return not numbers, numbers if is_date else [-one for one in numbers]


def of_directory(directory: Path) -> tuple[list[LogSource], list[str]]:
    """The logs in a directory and below it, and its other files. Both are empty where it is gone."""
    found, others = [], []
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        if LogSource(path.name, path).holds_events():
            found.append(LogSource(path.name, path))
        else:
            others.append(str(path.relative_to(directory)))
    return found, others


def told_apart(paths: Sequence[Path]) -> list[str]:
    """The names of files, with as many directories as tell them apart: v1/worker.log and v2/worker.log."""
    most = max(len(path.parts) for path in paths)
    named = [[str(Path(*path.parts[-number:])) for path in paths] for number in range(1, most + 1)]
    return next((names for names in named if len(set(names)) == len(set(paths))), named[-1])
