"""A command of penstock in this process."""

from collections.abc import Mapping

from typer.testing import CliRunner

from penstock.ops.cli.main import app

_WIDE = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}


def penstock(*args: str, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Exit code, and both streams as one line of words, whatever the width of the screen."""
    result = CliRunner().invoke(app, list(args), prog_name="penstock", env={**_WIDE, **(env or {})})
    return result.exit_code, " ".join(result.output.replace("│", " ").split())
