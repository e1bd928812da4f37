"""The effect of a fault, or the error of one that did nothing."""

from collections.abc import Mapping
from typing import Any

Effect = Mapping[str, Any]  # as it was seen, for the report


class NotInjectedError(RuntimeError):
    """The fault did not happen. The report lists it among those that were not injected."""
