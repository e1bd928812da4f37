"""`python -m penstock.ops.bench.gpu [part ...] [--output DIR]`: measure the engine on a GPU beside the alternatives."""

import sys

from penstock.ops.bench.gpu.device_suite import DeviceSuite, Part

_PARTS = "penstock.ops.bench.gpu.parts"
SUITE = DeviceSuite(
    name="gpu",
    program="python -m penstock.ops.bench.gpu",
    bench="penstock.ops.bench.gpu.bench:Bench",
    tables="penstock.ops.bench.gpu.gpu_tables:TABLES",
    parts={
        "ceilings": Part(f"{_PARTS}.ceilings:run", 2),
        "parity": Part(f"{_PARTS}.parity:run", 8),
        "kernels": Part(f"{_PARTS}.kernels:run", 5),
        "products": Part(f"{_PARTS}.products:run", 5),
        "single": Part(f"{_PARTS}.single:run", 32),
        "backlog": Part(f"{_PARTS}.backlog:run", 58),
        "fill": Part(f"{_PARTS}.fill:run", 8),
    },
    time_limit_s=180.0,
)

if __name__ == "__main__":
    sys.exit(SUITE.main(sys.argv[1:]))
