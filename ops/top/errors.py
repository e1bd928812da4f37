"""Errors of the live view.

TopError
├── BadAddress   an address of a metrics port is malformed
└── NoAnswer     a metrics port does not answer with penstock's metrics
"""


class TopError(Exception):
    """Members cannot be shown. The message has a remedy."""


class BadAddress(TopError):
    """An address is malformed; the message says what is expected."""


class NoAnswer(TopError):
    """A metrics port does not answer, or not with metrics of penstock."""
