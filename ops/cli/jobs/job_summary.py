"""Final report of a job over files, for the terminal and as JSON."""

import json
from collections.abc import Mapping

from pydantic import TypeAdapter

from penstock.ops.cli.jobs.progress import rates
from penstock.ops.cli.terminal import say
from penstock.producer.files.file_job import BulkResult
from penstock.producer.files.job_report import JobReport, ReplyTally

_SHOWN_LABELS = 10


def print_summary(done: BulkResult, report: JobReport, tally: ReplyTally, output: str) -> None:
    """Print the report on stderr."""
    resumed = f" ({done.resumed:,} of earlier runs)" if done.resumed else ""
    speed = f"{done.seconds:.1f} s, {rates(done, tally.tokens)}"
    say(f"{done.rows:,} rows{resumed}, {done.failed:,} failed, {speed}: {output}")
    if report.labels:
        others = len(report.labels) - _SHOWN_LABELS
        more = f", {others:,} labels more" if others > 0 else ""
        say(f"Labels: {_counts(dict(report.labels.most_common(_SHOWN_LABELS)))}{more}")
    print_lengths(report)
    if tally.cached:
        say(f"From the workers' cache: {tally.cached / tally.rows:.0%} of the answers")
    if report.errors:
        say(f"Errors: {_counts(dict(report.errors.most_common()))}", "yellow")
        say("The output's error column holds the reason of each failed row.", "yellow")


def print_lengths(report: JobReport) -> None:
    """Print the histogram of lengths."""
    if report.lengths:
        say(f"Characters: {_counts({f'up to {chars:,}:': count for chars, count in sorted(report.lengths.items())})}")


def summary_json(done: BulkResult, report: JobReport, tally: ReplyTally) -> bytes:
    """The content of `--report`. Throughput and the cache's part are those of the last run."""
    last_run = {
        "seconds": round(done.seconds, 3),
        "rows_per_s": round(done.rows_per_s, 1),
        "resumed_rows": done.resumed,
        "tokens": tally.tokens,
        "tokens_per_s": round(tally.tokens / done.seconds, 1) if done.seconds > 0 else 0.0,
        "answered_rows": tally.rows,
        "cached_rows": tally.cached,
    }
    of_all_runs = TypeAdapter(JobReport).dump_python(report, mode="json")
    return json.dumps({**of_all_runs, "last_run": last_run}, indent=2, ensure_ascii=False).encode() + b"\n"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())
