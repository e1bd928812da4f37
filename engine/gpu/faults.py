"""Errors of a device's work, as callers handle them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import torch

from penstock.engine.errors import DeviceFailed, is_out_of_memory
from penstock.engine.gpu.workspace import release_cached_memory


class DeviceFaults:
    """Tells a lack of memory, a device that has failed, and errors of a batch apart. One for each device.

    Any lack of memory is OutOfMemoryError: the caller runs the batch again in parts. After any other error the device
    is synchronised. If that fails, it has failed for good: DeviceFailed, now and from then on. Else the error is the
    batch's own.
    """

    def __init__(self, synchronize: Callable[[], object]) -> None:
        """synchronize: waits for the device, and raises RuntimeError where it cannot be used any more."""
        self._synchronize = synchronize
        self._failure: str | None = None

    @property
    def has_failed(self) -> bool:
        """Whether the device has failed for good."""
        return self._failure is not None

    def require_sound(self) -> None:
        """Raise DeviceFailed if the device has failed before."""
        if self._failure is not None:
            raise DeviceFailed(self._failure)

    def sort(self, error: RuntimeError) -> NoReturn:
        """Raise a batch's error as its caller should handle it."""
        if is_out_of_memory(error):
            release_cached_memory()
            raise torch.OutOfMemoryError(str(error)) from error
        try:
            self._synchronize()
        except RuntimeError as lasting:
            said = str(lasting).partition("\n")[0]
            self._failure = f"the device failed, and this process cannot use it any more: {said}"
            raise DeviceFailed(self._failure) from error
        raise error

    @contextmanager
    def sorted(self) -> Iterator[None]:
        """Work on the device, whose errors are sorted. Raises DeviceFailed at once if it has failed before."""
        self.require_sound()
        try:
            yield
        except RuntimeError as error:
            self.sort(error)
