"""`penstock classify`: labels for a text, or for every row of a file."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.ops.cli.job_settings import ClassifySettings
from penstock.ops.cli.jobs import INPUT_HELP, OUTPUT_HELP, TEXT_HELP, run_job
from penstock.ops.cli.options import takes
from penstock.producer.wire.messages import Options


@takes(ClassifySettings)
def classify(
    settings: ClassifySettings,
    source: Annotated[Path | None, typer.Argument(metavar="IN", help=INPUT_HELP, show_default=False)] = None,
    target: Annotated[Path | None, typer.Argument(metavar="OUT", help=OUTPUT_HELP, show_default=False)] = None,
    text: Annotated[str | None, typer.Option("--text", help=TEXT_HELP)] = None,
) -> int:
    """Labels for a text, or for every row of a file. A worker must be running for the model.

    $ penstock classify --model intents --text "Where is my card?"

    $ penstock classify --model intents in.csv out.csv --column message

    The output has the input's columns and three more: label, score, error.

    A file is a bulk job: workers answer it with the time that online requests leave. One --text is an online request.

    Exit code 0: every row is answered. 1: some hold an error instead. 2: bad input.
    """
    options = Options(top_k=settings.top_k, truncate=settings.truncate)
    return run_job("classify", settings, options, source, target, text)
