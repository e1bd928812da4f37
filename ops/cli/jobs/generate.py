"""`penstock generate`: generate a text for a text, or for every row of a file."""

from pydantic import Field

from penstock.ops.cli.jobs.job_settings import JobSettings, OneText, Paths
from penstock.ops.cli.jobs.text_jobs import run_job
from penstock.ops.cli.setting_options import takes
from penstock.producer.wire.generation import read_generation
from penstock.producer.wire.messages import Options


class GenerateSettings(JobSettings):
    """Settings of `penstock generate`. What is not given is the checkpoint's own."""

    max_new_tokens: int | None = Field(None, ge=1, description="Most tokens of an answer. Default: the checkpoint's.")
    num_beams: int | None = Field(None, ge=1, description="Beams of beam search. 1: none. Default: the checkpoint's.")
    length_penalty: float | None = Field(
        None,
        allow_inf_nan=False,
        description="Of beam search: above 0 prefers long answers. Default: the checkpoint's.",
    )
    do_sample: bool = Field(False, description="Choose tokens at random, by their probabilities.")
    temperature: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="Of sampling: less is closer to the likeliest token."
    )
    top_k: int | None = Field(None, ge=0, description="Number of likeliest tokens that sampling draws from. 0: all.")
    top_p: float | None = Field(
        None, gt=0, le=1, description="Of sampling: among the likeliest tokens of this probability together."
    )
    seed: int | None = Field(
        None, ge=0, description="Of sampling: the same seed gives the same answers. Default: others at each run."
    )

    @property
    def options(self) -> Options:
        """The options of the requests."""
        names = self.model_fields_set - set(JobSettings.model_fields)
        given = {name: getattr(self, name) for name in names}  # 0 and False are values
        return Options(truncate=self.truncate, generation=read_generation(given))


@takes(GenerateSettings)
def generate(settings: GenerateSettings, paths: Paths = None, text: OneText = None) -> int:
    """Generate a text for a text, or for every row of a file, with an encoder-decoder model: T5, BART or Marian.

    A worker must be running for the model, or --local starts one.

    $ penstock generate --model t5-small --text "translate English to German: Good morning." --max-new-tokens 40

    $ penstock generate --model t5-small in.csv out.csv --column message --num-beams 4

    The output has the input's columns and three more: generated, finish, error. finish is stop, or length where
    --max-new-tokens ended an answer.

    A file is a bulk job: workers answer it in the time that online requests leave. A --text is an online request.

    A job that is ended continues with the same command.

    Exit code 0: every row is answered. 1: some rows hold an error, or
    the output cannot be written. 2: invalid input.
    """
    return run_job("generate", settings, settings.options, (settings.column,), paths, text)
