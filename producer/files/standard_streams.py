"""Standard input and output as files of a job, both named `-`."""

import sys
from pathlib import Path
from typing import IO

STANDARD = Path("-")


def name_of(source: Path) -> str:
    """Name of an input, for a sentence."""
    return "standard input" if source == STANDARD else source.name


def open_input(path: Path) -> IO[bytes]:
    """Open a file, or standard input, to read bytes."""
    return sys.stdin.buffer if path == STANDARD else path.open("rb")
