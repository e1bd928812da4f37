"""What a contestant gives the parts: work of one batch."""

import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module

from penstock.engine.types import Int32Array
from penstock.ops.bench.gpu.bench import Bench
from penstock.ops.bench.gpu.timing import Work

Requests = Sequence[Int32Array]
MakeWork = Callable[[Bench, Requests], Work]


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to compute the hidden states of all tokens by BERT-base: what is timed, each under its name in tables.

    A field that is None takes no part. No contestant pools, or copies results back.
    """

    resident: tuple[str, MakeWork] | None = None  # of one batch, whose inputs are on the device already
    hosted: tuple[str, MakeWork] | None = None  # of one batch of token ids on the host, with all that they need


@cache
def contestants() -> Sequence[Contestant]:
    """Those of every module of this folder."""
    package = __name__.rpartition(".")[0]
    modules = [import_module(f"{package}.{one.name}") for one in pkgutil.iter_modules(import_module(package).__path__)]
    return [contestant for module in modules for contestant in getattr(module, "CONTESTANTS", ())]


def of_one_batch(bench: Bench, requests: Requests, *, all_hosted: bool = False) -> dict[str, Callable[[], Work]]:
    """The contestants of one batch by name, for `Bench.compare`. Ours is measured from the host too."""
    found: dict[str, Callable[[], Work]] = {}
    for one in contestants():
        if one.resident is not None:
            found[one.resident[0]] = partial(one.resident[1], bench, requests)
        if one.hosted is not None and (all_hosted or one.hosted[0].startswith("ours")):
            found[one.hosted[0]] = partial(one.hosted[1], bench, requests)
    return found
