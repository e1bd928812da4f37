"""`--dry-run` of a job over files: its rows, their lengths, and the time that the kept cost tables predict."""

import datetime
from collections.abc import Iterable, Mapping

import uvloop

from penstock.ops.cli.jobs.job_settings import FileJobSettings
from penstock.ops.cli.jobs.progress import print_lengths
from penstock.ops.cli.terminal import say
from penstock.producer.errors import PenstockError
from penstock.producer.files import JobOutput, Reader
from penstock.producer.files.job_report import JobReport
from penstock.producer.files.row_blocks import Block
from penstock.worker.batching.kept_tables import REVISION_CHARS, tables_of
from penstock.worker.batching.startup_costs import MeasuredCosts

_CHARS_PER_TOKEN = 4  # of English
_SPECIAL_TOKENS = 2


def estimate_job(settings: FileJobSettings, output: JobOutput, reader: Reader) -> None:
    """Check the job as a run would, read the whole input and print what the job would do. Raises TableError."""
    kept = output.check(reader)
    if kept:
        say(f"{kept:,} rows are finished; a run would continue after them. The figures are of all rows.")
    uvloop.run(_print_estimate(reader, settings))


async def _print_estimate(blocks: Iterable[Block], settings: FileJobSettings) -> None:
    report = JobReport()
    failed = 0
    for block in blocks:
        report.rows += len(block.texts)
        report.add_lengths(block)
        failed += sum(isinstance(text, PenstockError) for text in block.texts)
    say(f"{report.rows:,} rows, {failed:,} without a text that can be sent")
    print_lengths(report)
    kept = await tables_of(settings.model, config=settings.config)
    if not kept.costs:
        say(f"No time is estimated: {kept.note}")
    elif kept.note:
        say(kept.note, "yellow")
    for key, measured in kept.costs.items():
        time = datetime.timedelta(seconds=round(estimate_s(report.lengths, measured)))
        engine = ", padded" if measured.table.padded else ""
        revision = f", revision {key.revision[:REVISION_CHARS]}" if kept.num_revisions > 1 else ""
        like = f"{key.device}, {key.dtype}{engine}{revision}"
        say(f"About {time} on one worker like {like}, at {_CHARS_PER_TOKEN} characters a token")


def estimate_s(lengths: Mapping[int, int], costs: MeasuredCosts) -> float:
    """Seconds of the engine for texts of these lengths, in full batches of similar ones.

    Args:
        lengths: rows by the largest number of characters, a power of two; the mean is taken as three quarters of it.
    """
    seconds = 0.0
    for most_chars, rows in lengths.items():
        tokens = _SPECIAL_TOKENS + max(1, round(0.75 * most_chars / _CHARS_PER_TOKEN))
        size = max(1, min(costs.max_sequences, costs.max_tokens // tokens))
        seconds += rows / size * costs.table.seconds(size * tokens, size * tokens**2, tokens, size)
    return seconds
