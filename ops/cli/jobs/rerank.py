"""`penstock rerank`: compute the score of a query and a document for every row of a file."""

from pydantic import Field

from penstock.ops.cli.jobs.job_settings import FileJobSettings, Paths
from penstock.ops.cli.jobs.text_jobs import run_job
from penstock.ops.cli.setting_options import takes
from penstock.producer.wire.messages import Options


class RerankSettings(FileJobSettings):
    """Settings of `penstock rerank`."""

    query_column: str = Field("query", description="Column (CSV, Parquet) or key (JSONL) that holds the query.")
    document_column: str = Field("document", description="Column or key that holds the document.")


@takes(RerankSettings)
def rerank(settings: RerankSettings, paths: Paths = None) -> int:
    """Compute the score of a query and a document for every row of a file.

    A worker must be running for the model, or --local starts one.

    $ penstock rerank --model cross-encoder pairs.csv scored.csv --document-column passage

    $ penstock rerank --local --model DIRECTORY pairs.csv scored.csv --document-column passage

    The output has the input's columns and two more: score, error.

    A file is a bulk job: workers answer it in the time that online requests leave.

    A job that is ended continues with the same command.

    Exit code 0: every row is answered. 1: some rows hold an error, or
    the output cannot be written. 2: invalid input.
    """
    columns = (settings.query_column, settings.document_column)
    return run_job("rerank", settings, Options(truncate=settings.truncate), columns, paths)
