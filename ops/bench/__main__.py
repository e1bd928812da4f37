"""`penstock bench`: one command for each suite. Its options are the suite's own, which `runner.py` reads.

`python -m penstock.ops.bench SUITE …` is the same.
"""

from collections.abc import Callable

import typer

from penstock.ops.bench.common.runner import run_suite
from penstock.ops.bench.common.suite import BenchSuite
from penstock.ops.bench.suites import SUITES

bench = typer.Typer(add_completion=False, no_args_is_help=True, help="Measure workers, engines and policies.")


def _command(suite: BenchSuite) -> Callable[[typer.Context], None]:
    def run(context: typer.Context) -> None:
        raise typer.Exit(run_suite(suite, context.args))

    return run


for _suite in SUITES.values():
    bench.command(
        _suite.name,
        help=_suite.about,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    )(_command(_suite))


if __name__ == "__main__":
    bench(prog_name="python -m penstock.ops.bench")
