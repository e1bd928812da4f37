"""Compiled: functions of kernels."""

from collections.abc import Callable
from typing import TypeVar, cast

from numba.extending import register_jitable

_Function = TypeVar("_Function", bound=Callable[..., object])
inlined = cast(Callable[[_Function], _Function], register_jitable)  # compiled with the kernel that calls it
