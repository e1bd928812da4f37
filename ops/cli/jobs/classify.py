"""`penstock classify`: compute labels for a text, or for every row of a file."""

from pydantic import Field

from penstock.ops.cli.jobs.job_settings import JobSettings, OneText, Paths
from penstock.ops.cli.jobs.text_jobs import run_job
from penstock.ops.cli.setting_options import takes
from penstock.producer.wire.messages import Options


class ClassifySettings(JobSettings):
    """Settings of `penstock classify`."""

    top_k: int = Field(1, ge=0, description="Number of labels for each text, best first. 0: all.")


@takes(ClassifySettings)
def classify(settings: ClassifySettings, paths: Paths = None, text: OneText = None) -> int:
    """Compute labels for a text, or for every row of a file.

    A worker must be running for the model, or --local starts one.

    $ penstock classify --model intents --text "Where is my card?"

    $ penstock classify --model intents in.csv out.csv --column message

    $ penstock classify --local --model DIRECTORY in.csv out.csv --column message

    The output has the input's columns and three more: label, score, error.

    A file is a bulk job: workers answer it in the time that online requests leave. A --text is an online request.

    A job that is ended continues with the same command.

    Exit code 0: every row is answered. 1: some rows hold an error, or
    the output cannot be written. 2: invalid input.
    """
    options = Options(top_k=settings.top_k, truncate=settings.truncate)
    return run_job("classify", settings, options, (settings.column,), paths, text)
