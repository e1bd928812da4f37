"""Standard input and output as files of a job, both named `-`."""

import io
import os
import select
import sys
from pathlib import Path
from typing import IO

STANDARD = Path("-")
_INPUT = 0  # descriptor
_LOOK_S = 0.2


class _Pipe(io.RawIOBase):
    """Standard input that is a pipe or a terminal. `end_input` ends a read of it, where another one waits for data."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # what BufferedReader gives
        while not select.select([_INPUT], [], [], _LOOK_S)[0]:
            pass
        return os.readv(_INPUT, [buffer])


def name_of(source: Path) -> str:
    """Name of an input, for a sentence."""
    return "standard input" if source == STANDARD else source.name


def input_shown(source: Path) -> str:
    """An input with its path, for the beginning of a sentence."""
    return "Standard input" if source == STANDARD else str(source)


def open_input(path: Path) -> IO[bytes]:
    """Open a file, or standard input, to read bytes."""
    if path != STANDARD:
        return path.open("rb")
    return sys.stdin.buffer if sys.stdin.seekable() else io.BufferedReader(_Pipe())


def end_input() -> None:
    """End standard input, so that no thread waits for more of it: the process would wait for that thread."""
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), _INPUT)
