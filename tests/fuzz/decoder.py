"""One way by which bytes come in, as the fuzzer sees it."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.fuzz.mutations import mutated_bytes

Mutate = Callable[[random.Random, Sequence[bytes]], bytes]


@dataclass(frozen=True)
class Decoder:
    """One way in. `decode` returns, or raises one of `errors`; anything else is a fault."""

    name: str
    samples: Sequence[bytes]
    decode: Callable[[bytes], object]
    errors: tuple[type[Exception], ...] = ()
    mutations: Sequence[Mutate] = (mutated_bytes,)
