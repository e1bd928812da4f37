"""`python -m penstock.ops.bench.cellular.generation`: encoder-decoder generation beside transformers, in 150 s."""

import sys

from penstock.ops.bench.cellular.generation.generation_tables import SEARCHES
from penstock.ops.bench.gpu.device_suite import DeviceSuite, Part

_HERE = "penstock.ops.bench.cellular.generation"
_BUDGETS_S = {"step": 14, "continuous": 8, "static": 8, "transformers": 14, "arrivals": 12}
SUITE = DeviceSuite(
    name="generation",
    program="python -m penstock.ops.bench.cellular.generation",
    bench=f"{_HERE}.generation_bench:GenerationBench",
    tables=f"{_HERE}.generation_tables:TABLES",
    parts={
        f"{part}_{search}": Part(f"{_HERE}.generation_parts:{part}", budget_s, (search,))
        for search in SEARCHES
        for part, budget_s in _BUDGETS_S.items()
    },
    time_limit_s=150.0,
)

if __name__ == "__main__":
    sys.exit(SUITE.main(sys.argv[1:]))
