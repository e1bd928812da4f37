"""Single keys of a terminal, without Enter."""

import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def keys() -> Iterator[Callable[[float], str]]:
    """A function that waits at most the given seconds for a key; empty if none was pressed. Stdin is a terminal."""
    place = sys.stdin.fileno()
    before = termios.tcgetattr(place)

    def wait(seconds: float) -> str:
        ready, _, _ = select.select([place], [], [], max(0.0, seconds))
        return os.read(place, 64).decode("utf-8", "replace")[:1] if ready else ""

    try:
        tty.setcbreak(place)
        yield wait
    finally:
        termios.tcsetattr(place, termios.TCSADRAIN, before)
