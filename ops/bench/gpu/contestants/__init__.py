"""The contestants that compute the hidden states of all tokens of a request by BERT-base, by their names in tables.

None pools, or copies results back. Each module has `CONTESTANTS`, name -> `MakeWork`: to add one is to add a file.
"""

import pkgutil
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module

from penstock.engine.types import Int32Array
from penstock.ops.bench.gpu.bench import Bench
from penstock.ops.bench.gpu.timing import Work

# The work that is timed. Where its name ends with FROM_HOST it takes ids on the host, and does all that they need; else
# its inputs are on the device already.
MakeWork = Callable[[Bench, Int32Array], Work]


@cache
def contestants() -> Mapping[str, MakeWork]:
    """Those of every module of this folder."""
    modules = [import_module(f"{__name__}.{one.name}") for one in pkgutil.iter_modules(__path__)]
    return {name: make for module in modules for name, make in module.CONTESTANTS.items()}


def of_request(bench: Bench, request: Int32Array) -> dict[str, Callable[[], Work]]:
    """All of them over one request, for `Bench.compare`."""
    return {name: partial(make, bench, request) for name, make in contestants().items()}
