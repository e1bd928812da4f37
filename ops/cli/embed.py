"""`penstock embed`: vectors for a text, or for every row of a file."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.ops.cli.job_settings import EmbedSettings
from penstock.ops.cli.jobs import INPUT_HELP, OUTPUT_HELP, TEXT_HELP, run_job
from penstock.ops.cli.options import takes
from penstock.producer.wire.messages import Options


@takes(EmbedSettings)
def embed(
    settings: EmbedSettings,
    source: Annotated[Path | None, typer.Argument(metavar="IN", help=INPUT_HELP, show_default=False)] = None,
    target: Annotated[Path | None, typer.Argument(metavar="OUT", help=OUTPUT_HELP, show_default=False)] = None,
    text: Annotated[str | None, typer.Option("--text", help=TEXT_HELP)] = None,
) -> int:
    """Vectors for a text, or for every row of a file. A worker must be running for the model.

    $ penstock embed --model minilm --text "Where is my card?"

    $ penstock embed --model minilm in.parquet out.parquet --column message

    The output has the input's columns and two more: embedding, error.

    A file is a bulk job: workers answer it with the time that online requests leave. One --text is an online request.

    Exit code 0: every row is answered. 1: some hold an error instead. 2: bad input.
    """
    options = Options(pooling=settings.pooling, truncate=settings.truncate)
    return run_job("embed", settings, options, source, target, text)
