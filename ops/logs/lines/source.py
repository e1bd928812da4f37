"""Sources of logs: files, directories, gzip and zstd, stdin. Each source gives blocks of whole lines."""

import codecs
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from penstock.ops.logs.errors import NoEvents
from penstock.ops.logs.libraries import pyarrow
from penstock.producer.files.standard_streams import STANDARD, end_input, open_input

STDIN = str(STANDARD)
BLOCK_BYTES = 8 << 20
MAX_LINE_BYTES = 1 << 20  # the longest line of a worker, with a trace, has some kilobytes
_SNIFF_BYTES = 1 << 16
_UNPACKED_BYTES = 1 << 20  # at a time
MAGIC_BYTES = 4
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_ROTATED = re.compile(r"([.-]\d+)*(\.gz|\.zst)?$")
_MIN_YEAR = 1970  # a lower number in a name counts rotations
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


@dataclass(slots=True)
class LogSource:
    """One log. The notes say what could not be read of it."""

    name: str  # for the screen
    path: Path | None  # None: stdin
    num_bytes: int = 0  # read so far, as stored
    num_long_lines: int = 0
    notes: list[str] = field(default_factory=list)

    def blocks(self) -> Iterator[bytes]:
        """Whole lines, about `BLOCK_BYTES` at a time, decompressed and in UTF-8. The last line may lack its end.

        A longer line than `MAX_LINE_BYTES` that spans blocks is counted and left out. What cannot be read ends the
        source with a note.
        """
        try:
            with self._open() as file:
                yield from self._whole_lines(file)
        except OSError as error:
            self.notes.append(error.strerror or str(error).partition("\n")[0])

    def close(self) -> None:
        """End a read that waits for more of standard input."""
        if self.path is None:
            end_input()

    def _open(self) -> IO[bytes]:
        return open_input(self.path or STANDARD)

    def _whole_lines(self, file: IO[bytes]) -> Iterator[bytes]:
        rest, is_skipping = b"", False
        for data in self._decoded(file):
            if is_skipping:
                start = data.find(b"\n") + 1
                if not start:
                    continue
                data, is_skipping = data[start:], False
            data = rest + data
            end = data.rfind(b"\n") + 1
            if end:
                yield data[:end]
            rest = data[end:]
            if len(rest) > MAX_LINE_BYTES:
                self.num_long_lines += 1
                rest, is_skipping = b"", True
        if rest:
            yield rest

    def _decoded(self, file: IO[bytes]) -> Iterator[bytes]:
        """The bytes as UTF-8, without a byte order mark."""
        chunks = self._decompressed(file)
        first = next(chunks, b"")
        encoding = _UTF16.get(first[:2])
        if encoding is None:
            yield first.removeprefix(codecs.BOM_UTF8)
            yield from chunks
            return
        decoder = codecs.getincrementaldecoder(encoding)("replace")
        yield decoder.decode(first[2:]).encode()
        for chunk in chunks:
            yield decoder.decode(chunk).encode("utf-8", "replace")

    def _decompressed(self, file: IO[bytes]) -> Iterator[bytes]:
        first = _read(file)
        self.num_bytes += len(first)
        compression = compression_of(first)
        if compression is None:
            while first:
                yield first
                first = _read(file)
                self.num_bytes += len(first)
            return
        yield from self._unpacked(_Prefixed(first, file), compression)

    def _unpacked(self, file: "_Prefixed", compression: str) -> Iterator[bytes]:
        arrow = pyarrow()
        stream = arrow.CompressedInputStream(arrow.PythonFile(file, "r"), compression)
        while True:
            data = bytearray(_UNPACKED_BYTES)
            try:
                size = stream.readinto(data)
            except OSError:
                # The buffer has what came before the damage; zero bytes at its end are not of a text.
                yield bytes(data.rstrip(b"\0"))
                self.notes.append(f"its {compression} data ends early or is damaged; it was read up to there")
                return
            finally:
                self.num_bytes += file.take_count()
            if not size:
                return
            yield bytes(memoryview(data)[:size])


class _Prefixed:
    """A readable file of which the first bytes have been read already."""

    closed = False

    def __init__(self, first: bytes, file: IO[bytes]) -> None:
        self._first, self._file, self._count = first, file, 0

    def read(self, size: int = -1) -> bytes:
        if self._first:
            data, self._first = self._first[:size], self._first[size:]
            return data
        data = self._file.read(size)
        self._count += len(data)
        return data

    def take_count(self) -> int:
        """Bytes read beyond the first since the last call."""
        count, self._count = self._count, 0
        return count

    def close(self) -> None:
        """The owner closes the file."""


def compression_of(first: bytes) -> str | None:
    """The compression of a log, by its first bytes; None for text."""
    return next((name for magic, name in _COMPRESSIONS.items() if first.startswith(magic)), None)


def _read(file: IO[bytes]) -> bytes:
    """Up to a block; what a pipe has now, so that lines are shown when they come."""
    read1 = getattr(file, "read1", None)
    return bytes(file.read(_block_bytes(file)) if read1 is None or file.seekable() else read1(BLOCK_BYTES))


def _block_bytes(file: IO[bytes]) -> int:
    """The bytes from here to the last end of a line in a block: whole lines need not be copied again."""
    start, middle = file.tell(), max(0, BLOCK_BYTES - _SNIFF_BYTES)
    file.seek(start + middle)
    end = file.read(BLOCK_BYTES - middle)
    file.seek(start)
    return middle + end.rfind(b"\n") + 1 if b"\n" in end else BLOCK_BYTES


def in_large_blocks(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Small blocks, of a pipe or of compressed data, joined: small ones are parsed one line at a time."""
    waiting: list[bytes] = []
    num_bytes = 0
    for block in blocks:
        waiting.append(block)
        num_bytes += len(block)
        if num_bytes >= BLOCK_BYTES // 2:
            yield b"".join(waiting)
            waiting, num_bytes = [], 0
    if waiting:
        yield b"".join(waiting)


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
    _tell_apart(sources)
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
        if _looks_like_a_log(path):
            found.append(LogSource(path.name, path))
        else:
            others.append(str(path.relative_to(directory)))
    return found, others


def _looks_like_a_log(path: Path) -> bool:
    """Whether the first kilobytes have an event, or the file cannot be read, which its reader then says."""
    probe = LogSource(path.name, path)
    try:
        with path.open("rb") as file:
            head = next(probe._decoded(file), b"")[:_SNIFF_BYTES]
    except OSError:
        return True
    return any(mark in head for mark in (b'"event":', b'"MESSAGE"', b'"ecs.version"'))


def _tell_apart(sources: Sequence[LogSource]) -> None:
    """Files of one name in several directories are shown by their paths."""
    names = [source.name for source in sources]
    for source in sources:
        if names.count(source.name) > 1 and source.path is not None:
            source.name = "/".join(source.path.parts[-2:])
