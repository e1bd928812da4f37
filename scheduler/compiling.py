"""Compiled loops, which an earlier process may have kept."""

from collections.abc import Callable, Sequence
from typing import Any


def compiled(
    functions: Sequence[Callable[..., object]],
    exercise: Callable[..., None],
    fastmath: frozenset[str] = frozenset(),
) -> list[Any]:
    """The functions as numba compiles them: at once where an earlier process kept them, else within seconds.

    What is kept is written anew where it is damaged.

    exercise: called with them; calls each with arguments of the types that come later, so that none is compiled while
    work waits, and raises where they do not run. fastmath: flags of LLVM for all of them.
    """
    from numba import njit  # takes half a second to load

    def made(*, cache: bool, anew: bool = False) -> list[Any]:
        kernels = [njit(function, cache=cache, fastmath=set(fastmath)) for function in functions]
        for kernel in kernels if anew else ():
            kernel.recompile()  # of none, before the first call: it empties the cache
        exercise(*kernels)
        return kernels

    try:
        return made(cache=True)
    except Exception:  # of numba's cache: files that are damaged or old
        pass
    try:
        return made(cache=True, anew=True)
    except Exception:  # no folder, one that is full or read-only
        return made(cache=False)
