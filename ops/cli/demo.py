"""`penstock demo`: see it work."""

import typer

from penstock.ops.cli.screen import exit_code_of


def demo() -> None:
    """Start a broker, a worker and a client on this machine and answer real texts, with numbers.

    Needs nothing running: the broker is a mock within this process, the model comes with the `demo` extra.
    """
    from penstock.ops.demo import run

    raise typer.Exit(exit_code_of(run))
