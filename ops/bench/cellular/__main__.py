"""`penstock bench cellular`: cellular batching beside the policies before it, as in BatchMaker's paper."""

import sys

from penstock.ops.bench.cellular.cellular_tables import PARTS
from penstock.ops.bench.gpu.device_suite import DeviceSuite, Part

_HERE = "penstock.ops.bench.cellular"
SUITE = DeviceSuite(
    name="cellular",
    program="penstock bench cellular",
    bench=f"{_HERE}.cellular_bench:CellularBench",
    tables=f"{_HERE}.cellular_tables:TABLES",
    parts={name: Part(f"{_HERE}.evaluation:run", 40, (name,)) for name in PARTS},
    time_limit_s=240.0,
)

if __name__ == "__main__":
    sys.exit(SUITE.main(sys.argv[1:]))
