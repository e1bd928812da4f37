"""The lines that a test run ends with: how many tests were skipped, why, and which command runs them."""

from collections import Counter
from collections.abc import Iterable

import pytest

_COMMANDS = {"GPU test": "make test-gpu", "integration test": "install Java 17 and Maven, then make test"}


def skip_lines(skipped: Iterable[pytest.TestReport]) -> list[str]:
    """One line for each kind of test and reason, the most frequent first. Other kinds' reasons say what is missing."""
    counts = Counter((_kind(report), _reason(report)) for report in skipped)
    return [_line(kind, reason, count) for (kind, reason), count in counts.most_common()]


def _line(kind: str, reason: str, count: int) -> str:
    line = f"{count:,} {kind}{'s' if count > 1 else ''} did not run ({reason})"
    return f"{line}: {_COMMANDS[kind]}" if kind in _COMMANDS else line


def _kind(report: pytest.TestReport) -> str:
    if "gpu" in report.keywords:
        return "GPU test"
    return "integration test" if "integration" in report.keywords else "test"


def _reason(report: pytest.TestReport) -> str:
    """A skip's `longrepr` is (file, line, "Skipped: reason")."""
    told = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return told.removeprefix("Skipped: ")
