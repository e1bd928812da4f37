"""`penstock embed`: compute vectors for a text, or for every row of a file."""

from typing import Literal, Self

from pydantic import Field, model_validator

from penstock.ops.cli.jobs.job_settings import JobSettings, OneText, Paths
from penstock.ops.cli.jobs.text_jobs import run_job
from penstock.ops.cli.setting_options import takes
from penstock.producer.wire.messages import Options


class EmbedSettings(JobSettings):
    """Settings of `penstock embed`."""

    pooling: Literal["cls", "mean", "max", "last"] | None = Field(
        None, description="How token vectors become one vector. Default: the checkpoint's."
    )
    prompt_name: str | None = Field(
        None, description="Name of the checkpoint's prompt to prepend to each text. Default: the checkpoint's default."
    )
    prompt: str | None = Field(None, description="The prompt itself, in place of a name.")
    dimensions: int | None = Field(
        None, ge=1, description="Length that vectors are cut to, for models trained so. Default: the checkpoint's."
    )

    @model_validator(mode="after")
    def _check_prompts(self) -> Self:
        if self.prompt_name is not None and self.prompt is not None:
            raise ValueError("give at most one of --prompt-name and --prompt")
        return self


@takes(EmbedSettings)
def embed(settings: EmbedSettings, paths: Paths = None, text: OneText = None) -> int:
    """Compute vectors for a text, or for every row of a file.

    A worker must be running for the model, or --local starts one.

    $ penstock embed --model minilm --text "Where is my card?"

    $ penstock embed --model minilm in.parquet out.parquet --column message

    $ penstock embed --model e5-base in.csv out.csv --prompt "passage: "

    $ penstock embed --local --model DIRECTORY in.parquet out.parquet --column message

    The output has the input's columns and two more: embedding, error.

    A file is a bulk job: workers answer it in the time that online requests leave. A --text is an online request.

    A job that is ended continues with the same command.

    Exit code 0: every row is answered. 1: some rows hold an error, or
    the output cannot be written. 2: invalid input.
    """
    options = Options(
        pooling=settings.pooling,
        truncate=settings.truncate,
        prompt_name=settings.prompt_name,
        prompt=settings.prompt,
        dimensions=settings.dimensions,
    )
    return run_job("embed", settings, options, (settings.column,), paths, text)
