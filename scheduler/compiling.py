"""Compiled loops, which an earlier process may have kept."""

from collections.abc import Callable, Sequence
from typing import Any


def compiled(
    functions: Sequence[Callable[..., object]],
    exercise: Callable[..., None],
    fastmath: frozenset[str] = frozenset(),
) -> list[Any]:
    """The functions as numba compiles them: at once where an earlier process kept them, else within seconds.

    exercise: called with them; calls each with arguments of the types that come later, so that none is compiled while
    work waits, and raises where they do not run. fastmath: flags of LLVM for all of them.
    """
    from numba import njit  # takes half a second to load

    try:
        kernels = [njit(function, cache=True, fastmath=set(fastmath)) for function in functions]
        exercise(*kernels)
    except Exception:  # of numba's cache: no folder, one that is full or read-only, or files that are damaged or old
        kernels = [njit(function, fastmath=set(fastmath)) for function in functions]
        exercise(*kernels)
    return kernels
