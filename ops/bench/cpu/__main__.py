"""`python -m penstock.ops.bench.cpu [part ...]`: measure, print, and keep a whole run as one file."""

import sys
from importlib.util import find_spec

from penstock.ops.bench.common.part_suite import PartSuite
from penstock.ops.bench.cpu.cpu_tables import TABLES

PARTS = {
    "engine": "penstock.ops.bench.cpu.part_engine:run_float32",
    "engine-bf16": "penstock.ops.bench.cpu.part_engine:run_bfloat16",
    "end-to-end": "penstock.ops.bench.cpu.part_kafka:run_end_to_end",
    "latency": "penstock.ops.bench.cpu.part_kafka:run_latency",
    "null": "penstock.ops.bench.cpu.part_null:run_null",
    "memory": "penstock.ops.bench.cpu.part_null:run_memory",
}
SUITE = PartSuite("cpu", PARTS, TABLES, "duration, as a share of the usual; 1 takes some six minutes on two idle cores")


def main() -> int:
    """Exit code: 0; 1 if something could not be run."""
    arguments = SUITE.parser("The benchmarks of penstock.").parse_args()
    if {"end-to-end", "latency"} & set(arguments.parts or PARTS) and find_spec("faststream") is None:
        print("The alternative end to end is not installed. Run: pip install 'penstock[bench]'", file=sys.stderr)
        return 1
    return SUITE.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
