"""`penstock embed`: compute vectors for a text, or for every row of a file."""

from typing import Literal

from pydantic import Field

from penstock.ops.cli.jobs import JobSettings, OneText, Source, Target, run_job
from penstock.ops.cli.options import takes
from penstock.producer.wire.messages import Options


class EmbedSettings(JobSettings):
    """Settings of `penstock embed`."""

    pooling: Literal["cls", "mean", "max", "last"] | None = Field(
        None, description="How token vectors become one vector: cls, mean, max or last. Default: the checkpoint's."
    )


@takes(EmbedSettings)
def embed(settings: EmbedSettings, source: Source = None, target: Target = None, text: OneText = None) -> int:
    """Compute vectors for a text, or for every row of a file. A worker must be running for the model.

    $ penstock embed --model minilm --text "Where is my card?"

    $ penstock embed --model minilm in.parquet out.parquet --column message

    The output has the input's columns and two more: embedding, error.

    A file is a bulk job: workers answer it in the time that online requests leave. A --text is an online request.

    Exit code 0: every row is answered. 1: some rows hold an error. 2: invalid input.
    """
    options = Options(pooling=settings.pooling, truncate=settings.truncate)
    return run_job("embed", settings, options, source, target, text)
