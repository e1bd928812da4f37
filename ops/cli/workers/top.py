"""`penstock top`: watch members in a terminal."""

import sys
import time
from datetime import datetime
from typing import Annotated

import typer

from penstock.ops.cli.terminal import EXIT_OK, BadUsage, ends_with_code
from penstock.ops.logs.screens.tables import make_console
from penstock.ops.top.fleet import Fleet
from penstock.ops.top.scrape import DEFAULT_ADDRESS, BadAddress, normalized, scrape
from penstock.ops.top.screen import View, keys, screen, watch

Addresses = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ADDRESS...]",
        show_default=False,
        help=f"Metrics ports: a port, HOST:PORT or a URL. Default: {DEFAULT_ADDRESS}.",
    ),
]
Interval = Annotated[float, typer.Option("--interval", "-d", min=0.2, max=60.0, help="Seconds between two readings.")]
Once = Annotated[bool, typer.Option("--once", help="Read the metrics twice, print one screen and exit.")]


@ends_with_code(BadAddress)
def top(addresses: Addresses = None, interval: Interval = 1.0, once: Once = False) -> int:
    """Watch members in a terminal: rates, latency, queues, lag, cache, errors and restarts, from their metrics.

    $ penstock top

    $ penstock top gpu-1:9100 gpu-2:9100

    $ penstock top --once --interval 5

    The port of a worker is its --metrics-port. A supervisor's port has all its members. Rates and latencies are of the
    last ten seconds, or of --interval with --once. Keys: q quits, s sorts by another column, p pauses.
    """
    given = [normalized(one) for one in addresses or [DEFAULT_ADDRESS]]
    fleet, console = Fleet(given, scrape, time.monotonic), make_console()
    if once:
        fleet.look()
        time.sleep(interval)
        fleet.look()
        console.print(screen(fleet, View(is_live=False), datetime.now(), console.width))
        return EXIT_OK
    if not (console.is_terminal and sys.stdin.isatty()):
        raise BadUsage("The live view needs a terminal. --once prints one screen.")
    with keys() as wait:
        watch(fleet, console, interval, wait)
    return EXIT_OK
