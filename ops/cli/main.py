"""The console script `penstock`. A command's module is imported when the command runs."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from penstock.ops.cli import option_panels  # noqa: F401  # the help of every command has its tables
from penstock.ops.cli.terminal import EXIT_USAGE, exit_code_of, fail, hold_standard_files

EPILOG = "Each setting is also an environment variable: --max-wait-ms is PENSTOCK_MAX_WAIT_MS."

# Command -> its line in the overview, in the order in which a new user needs them.
COMMANDS = {
    "demo": "Start here: run a broker, a worker and a client on this machine on real texts.",
    "check": "Find problems of a set-up.",
    "config": "Print the settings of a worker or a client with their origins, or explain one.",
    "parity": "Compare a checkpoint's answers with those of sentence-transformers and transformers.",
    "drift": "Compare what two versions of a model answered to the same records.",
    "convert": "Copy a checkpoint with safetensors in place of pickles.",
    "calibrate": "Measure the batch times of a model on this machine, for the scheduler.",
    "capacity": "Compute how many members, devices and partitions serve a load.",
    "worker": "Answer the requests of a model's topic until stopped.",
    "embed": "Compute vectors for a text, or for every row of a file.",
    "classify": "Compute labels for a text, or for every row of a file.",
    "generate": "Generate a text for a text, or for every row of a file.",
    "rerank": "Compute the score of a query and a document for every row of a file.",
    "top": "Watch members in a terminal: rates, latency, queues, lag, cache, errors, restarts.",
    "logs": "Inspect the logs of workers: summary, slow requests, errors, batches, costs, report.",
    "dlq": "List, show, replay and answer dead letters.",
    "replay": "Send records of a topic again: a range of requests, or the history of a route.",
    "asyncapi": "Print an AsyncAPI document of a worker's topics, headers and values.",
    "broker": "Run a Kafka broker for development on this machine.",
    "bench": "Measure workers, engines and policies. Needs a checkout.",
}
# Folder -> its commands whose module has their name, as the function of a command, or the typer app of several, has.
FOLDERS = {
    "checks": ("check", "config", "convert", "drift", "parity"),
    "planning": ("calibrate", "capacity"),
    "workers": ("worker", "top", "logs"),
    "dead_letters": ("dlq",),
    "replays": ("replay",),
    "development": ("demo", "broker", "asyncapi"),
}
_BENCH = "penstock.ops.bench"  # part of a checkout, not of the wheel
MODULES = {name: f"penstock.ops.cli.{folder}.{name}" for folder, names in FOLDERS.items() for name in names}
MODULES |= dict.fromkeys(("embed", "classify", "generate", "rerank"), "penstock.ops.cli.jobs.task_commands")
MODULES["bench"] = f"{_BENCH}.__main__"


class LazyGroup(TyperGroup):
    """A group that loads only the command that runs. Loading all of them would add a second to every `--help`."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names, in the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A stand-in with name and line, for the overview."""
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command itself, to be run."""
        name, _, rest = super().resolve_command(ctx, args)  # raises "No such command" for an unknown name
        return name, _load(str(name)), rest


def _load(name: str) -> Any:
    if name == "bench" and find_spec(_BENCH) is None:
        fail("Benchmarks run from a checkout of the repository; an installed package does not hold them.")
        raise typer.Exit(EXIT_USAGE)
    function = getattr(import_module(MODULES[name]), name)
    if isinstance(function, typer.Typer):  # several commands
        return typer.main.get_command(function)
    single = typer.Typer(add_completion=False)
    single.command(name, epilog=EPILOG if hasattr(function, "settings") else None)(function)  # set by `takes`
    return typer.main.get_command(single)


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, pretty_exceptions_enable=False)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version  # slow to import

        typer.echo(f"penstock {version('penstock')}")
        raise typer.Exit


@app.callback(epilog=EPILOG)
def penstock(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    """Transformer inference as a Kafka consumer group.

    Clients put texts on a request topic; workers answer on a reply topic. `penstock COMMAND --help` explains each part.
    """


def main() -> None:
    """The console script."""
    hold_standard_files()
    raise SystemExit(exit_code_of(lambda: app(prog_name="penstock")))
