"""`penstock`: one command for all that a person does with this system. Commands are imported when they are run."""

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from penstock.ops.cli.screen import exit_code_of

EPILOG = "Settings are also environment variables, as each says: --max-wait-ms is PENSTOCK_MAX_WAIT_MS."

# Command -> its line in the overview. Each is a function, or an app of several, named as the module that it is in.
COMMANDS = {
    "demo": "Start here: a broker, a worker and a client on this machine, answering real texts.",
    "check": "Say in one screen what is wrong with a set-up.",
    "parity": "Say in one screen how near a checkpoint's numbers are to transformers'.",
    "calibrate": "Measure how long a model's batches take on this machine, for its workers' scheduler.",
    "worker": "Answer the requests of a model's topic until stopped.",
    "embed": "Vectors for a text, or for every row of a file.",
    "classify": "Labels for a text, or for every row of a file.",
    "broker": "Run a Kafka broker for development on this machine.",
    "bench": "Measure batching policies on this machine, or simulate a fleet.",
}


class LazyGroup(TyperGroup):
    """Knows its commands by name; loads the one that is run. Loading all would cost a second at every `--help`."""

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order a newcomer meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """What the overview needs: name and line."""
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """What running needs: the command itself."""
        name, _, rest = super().resolve_command(ctx, args)  # ends with "No such command" if there is none
        return name, _load(str(name)), rest


def _load(name: str) -> Any:
    function = getattr(import_module(f"penstock.ops.cli.{name}"), name)
    if isinstance(function, typer.Typer):  # a command of several
        return typer.main.get_command(function)
    single = typer.Typer(add_completion=False)
    single.command(name, epilog=EPILOG)(function)
    return typer.main.get_command(single)


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version  # slow, and only needed here

        typer.echo(f"penstock {version('penstock')}")
        raise typer.Exit


@app.callback(epilog=EPILOG)
def penstock(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    """Transformer inference as a Kafka consumer group.

    Clients put texts on a request topic; workers answer on a reply topic. `penstock COMMAND --help` teaches each part.
    """


def main() -> None:
    """The console script."""
    raise SystemExit(exit_code_of(lambda: app(prog_name="penstock")))
