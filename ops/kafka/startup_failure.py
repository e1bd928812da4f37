"""Why a broker did not start, from its log."""

from pathlib import Path

_TAIL_BYTES = 3000
_MAX_LINES = 20


def startup_failure(path: Path, since: int) -> str:
    """The errors that a broker logged beyond an offset, and their causes. Its last lines if it logged none.

    A broker that fails logs hundreds of lines on its way down after the error, and its settings before.
    """
    log = path.read_bytes()[since:].decode(errors="replace")
    errors = [line for line in log.splitlines() if " ERROR " in line or line.startswith(("Caused by:", "Exception in"))]
    distinct = list(dict.fromkeys(errors))
    return "\n".join(distinct[:_MAX_LINES]) or log[-_TAIL_BYTES:]
