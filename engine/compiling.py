"""Compiled loops, which an earlier process may have kept."""

from collections.abc import Callable
from typing import Any, TypeVar

import structlog

log = structlog.get_logger("penstock.engine")

Kernels = TypeVar("Kernels")
Compile = Callable[[Callable[..., Any]], Any]


def load_compiled(make: Callable[[Compile], Kernels], **options: Any) -> Kernels:
    """The kernels of `make`: at once where an earlier process kept them, else within seconds, and kept anew.

    make: called with what compiles a function; calls each compiled one with arguments of the types that come later, and
    raises where they do not run. It is called again where files that were kept are damaged or old, or nothing can be
    kept. options: of numba's `njit`, for all functions.
    """
    from numba import njit  # takes half a second to load

    def made(*, cache: bool, anew: bool = False) -> Kernels:
        def compiled(function: Callable[..., Any]) -> Any:
            kernel = njit(function, cache=cache, **options)
            if anew:
                kernel.recompile()  # of none, before the first call: it empties the cache
            return kernel

        return make(compiled)

    try:
        return made(cache=True)
    except Exception:  # of numba's cache: files that are damaged or old
        pass
    try:
        return made(cache=True, anew=True)
    except Exception as error:  # no folder, one that is full or read-only
        log.warning("kernels_not_kept", reason=f"{type(error).__name__}: {error}")
        return made(cache=False)
