"""The loop of `penstock top`: look, show, wait for a key."""

import time
from collections.abc import Callable
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
                if not view.is_paused:
                    fleet.look()
                    moment = datetime.now()
