"""`python -m penstock.ops.bench.tracing`: measure the cost of traces, print, and keep the run."""

import sys
from importlib.util import find_spec

from penstock.ops.bench.common.part_suite import PartSuite

PARTS = {"cost": "part_cost:run_cost"}
SUITE = PartSuite("tracing", PARTS, "number of requests, as a share of the usual; 1 takes a minute")


def main() -> int:
    """Exit code: 0; 1 if something could not be run."""
    arguments = SUITE.parser("Processor time of a request in a worker and in a client, traced and not.").parse_args()
    if find_spec("opentelemetry") is None:
        print("OpenTelemetry is not installed. Run: pip install 'penstock[otel]'", file=sys.stderr)
        return 1
    return SUITE.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
