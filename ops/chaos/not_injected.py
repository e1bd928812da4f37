"""The error of a fault that found nothing to act on."""


class NotInjectedError(RuntimeError):
    """The fault did not happen. The report lists it among those that were not injected."""
