"""Contiguous ranges of a growing array in sizes of powers of two, handed out and taken back. For compiled callers.

The lists of free blocks are in `counts`: at `blocks` + i the first one of 2 ** i elements, each with the next one in
`links`, and at `blocks` + END where the elements begin that were in no block yet. Blocks never move.
"""

from collections.abc import Callable
from typing import TypeVar, cast

from numba.extending import register_jitable

from penstock.engine.cells.contract import Int32Array
from penstock.engine.cells.node_table import END, NONE

_Function = TypeVar("_Function", bound=Callable[..., object])
inlined = cast(Callable[[_Function], _Function], register_jitable)  # compiled with the kernel that calls it


@inlined
def bucket_of(length: int) -> int:
    """The power of two that is `length` or more."""
    bucket = 0
    while 1 << bucket < length:
        bucket += 1
    return bucket


@inlined
def take(counts: Int32Array, blocks: int, links: Int32Array, length: int) -> int:
    """The start of a block of `length` elements or more: a free one of its size, else from the end."""
    bucket = bucket_of(length)
    start = counts[blocks + bucket]
    if start == NONE:
        start = counts[blocks + END]
        counts[blocks + END] += 1 << bucket
    else:
        counts[blocks + bucket] = links[start]
    return start  # type: ignore[no-any-return]  # numpy's


@inlined
def give_back(counts: Int32Array, blocks: int, links: Int32Array, start: int, length: int) -> None:
    """Free a block that `take` returned for this length."""
    bucket = bucket_of(length)
    links[start] = counts[blocks + bucket]
    counts[blocks + bucket] = start
