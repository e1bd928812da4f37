"""Jobs of `penstock embed`, `classify`, `generate` and `rerank`: files of texts, or one text."""

from collections.abc import Sequence
from pathlib import Path

import uvloop

from penstock.ops.cli.jobs.job_settings import FileJobSettings
from penstock.ops.cli.terminal import EXIT_USAGE, fail, narrate_logs
from penstock.producer.wire.messages import Options


def run_job(
    task: str,
    settings: FileJobSettings,
    options: Options,
    columns: Sequence[str],
    paths: Sequence[Path] | None,
    text: str | None = None,
) -> int:
    """Run one command and return its exit code. `columns`: that of the texts, or the two of pairs."""
    narrate_logs(settings.bootstrap_servers)
    if text is not None and not paths:
        from penstock.ops.cli.jobs.local_fleet import local_broker
        from penstock.ops.cli.jobs.one_text import answer_one

        with local_broker(settings) as reaching:
            return uvloop.run(answer_one(task, reaching, options, text))
    if paths is None or len(paths) < 2 or text is not None:
        fail(f"Give a file to read and a file to write{'' if task == 'rerank' else ', or one --text'}.")
        return EXIT_USAGE
    *sources, target = paths
    if settings.dry_run:
        from penstock.ops.cli.jobs.job_estimate import estimate_job

        return estimate_job(task, settings, options, columns, sources, target)
    from penstock.ops.cli.jobs.file_job_command import run_file_job

    return run_file_job(task, settings, options, columns, sources, target)
