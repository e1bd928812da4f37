"""`python -m penstock.ops.bench.cache [part ...]`: measure the response cache, print, and keep a whole run."""

import sys

from penstock.ops.bench.cache.cache_tables import TABLES
from penstock.ops.bench.common.part_suite import PartSuite

PARTS = {"hits": "part_cache:run_hits", "misses": "part_cache:run_misses"}
SUITE = PartSuite("cache", PARTS, TABLES, "measured seconds, as a share of the usual; 1 takes three minutes")

if __name__ == "__main__":
    sys.exit(SUITE.run(SUITE.parser("The response cache.").parse_args()))
