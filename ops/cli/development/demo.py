"""`penstock demo`: the whole path on one machine."""

import typer

from penstock.ops.cli.terminal import exit_code_of


def demo() -> None:
    """Run a broker, a worker and a client on this machine on real texts, and show throughput and latency.

    Needs no running service: the broker is a mock within this process, the model comes with the `demo` extra.
    """
    from penstock.ops.demo.demo import run

    raise typer.Exit(exit_code_of(run))
