"""`python -m penstock.ops.bench.serving`: measure policies, print, and keep a whole run as one file."""

import sys

from penstock.ops.bench.common.part_suite import PartSuite
from penstock.ops.bench.serving.serving_tables import TABLES

PARTS = {"loads": "penstock.ops.bench.serving.part_loads:run"}
SUITE = PartSuite("serving-kafka", PARTS, TABLES, "measured seconds, as a share of the usual; 1 takes four minutes")

if __name__ == "__main__":
    sys.exit(SUITE.run(SUITE.parser("Batching policies through Kafka.").parse_args()))
