"""The loop of `penstock top`: look, show, wait for a key."""

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

from rich.console import Console
from rich.live import Live

from penstock.ops.top.fleet import Fleet
from penstock.ops.top.screen import SORTS, View, screen


def watch(
    fleet: Fleet,
    console: Console,
    interval_s: float,
    wait: Callable[[float], str],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Show the fleet until `q` is pressed. `wait` returns a key, or nothing after its seconds. Raises NoAnswer."""
    view, moment, next_s = View(), datetime.now(), clock()
    fleet.look()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(screen(fleet, view, moment, console.width), refresh=True)
            next_s = max(next_s, clock() - interval_s)  # looks that were missed are not made up for
            match wait(next_s + interval_s - clock()):
                case "q":
                    return
                case "s":
                    view = view._replace(sort=SORTS[(SORTS.index(view.sort) + 1) % len(SORTS)])
                case "p":
                    view = view._replace(is_paused=not view.is_paused)
            if clock() >= next_s + interval_s:
                next_s += interval_s
                moment = moment if view.is_paused else _look(fleet)


def _look(fleet: Fleet) -> datetime:
    fleet.look()
    return datetime.now()


@contextmanager
def keys() -> Iterator[Callable[[float], str]]:
    """A function that waits at most the given seconds for a key, without Enter; empty if none was pressed.

    Stdin is a terminal.
    """
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
