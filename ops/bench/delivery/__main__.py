"""`python -m penstock.ops.bench.delivery [part ...]`: measure, print, and keep a whole run as one file."""

import sys
from importlib.util import find_spec

from penstock.ops.bench.common.part_suite import PartSuite
from penstock.ops.bench.delivery.delivery_tables import TABLES

PARTS = {
    "poison": "penstock.ops.bench.delivery.part_poison:run_poison",
    "crash": "penstock.ops.bench.delivery.part_crash:run_crash",
    "crash-default": "penstock.ops.bench.delivery.part_crash:run_default",
    "roll": "penstock.ops.bench.delivery.part_roll:run_roll",
    "modes": "penstock.ops.bench.delivery.part_turns:run_modes",
    "modes-minilm": "penstock.ops.bench.delivery.part_turns:run_modes_minilm",
    "before": "penstock.ops.bench.delivery.part_turns:run_before",
}
SUITE = PartSuite("delivery", PARTS, TABLES, "measured seconds, as a share of the usual; 1 takes some seven minutes")


def main() -> int:
    """Exit code: 0; 1 if something could not be run."""
    parser = SUITE.parser("Benchmarks of delivery, beside a FastStream service and an earlier commit.")
    parser.add_argument(
        "--before", metavar="COMMIT", help="earlier commit for the part of this name, which is left out without it"
    )
    arguments = parser.parse_args()
    if {"poison", "crash", "crash-default"} & set(arguments.parts or PARTS) and find_spec("faststream") is None:
        print("FastStream is not installed. Run: pip install 'penstock[bench]'", file=sys.stderr)
        return 1
    return SUITE.run(arguments, arguments.before)


if __name__ == "__main__":
    sys.exit(main())
