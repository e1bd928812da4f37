"""Errors of log inspection.

LogsError
├── BadFilter        a filter on the command line is malformed
├── NoEvents         the input holds no event of penstock
└── MissingLibrary   an optional package is not installed
"""


class LogsError(Exception):
    """Logs cannot be inspected. The message has a remedy."""


class BadFilter(LogsError):
    """A filter is malformed; the message says what is expected."""


class NoEvents(LogsError):
    """The input holds no event of penstock."""


class MissingLibrary(LogsError):
    """An optional package is not installed."""
