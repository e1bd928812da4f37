"""`python -m penstock.ops.loop`: run the loop once, print its verdict, and end with status 1 if it has not passed."""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from penstock.ops.demo.demo_model import model_directory
from penstock.ops.demo.worker_child import WorkerFailed
from penstock.ops.kafka import BrokerError
from penstock.ops.loop.loop_run import LoopFailed, run_loop
from penstock.ops.loop.loop_settings import LoopSettings


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m penstock.ops.loop", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000, help="rows of the source table, before they are changed")
    parser.add_argument("--kills", type=int, default=2, help="how often the worker is killed by SIGKILL")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", type=Path, help="a directory of sentence-transformers; default: all-MiniLM-L6-v2")
    given = parser.parse_args()
    settings = LoopSettings(
        model=given.model or model_directory(),
        rows=given.rows,
        kills=given.kills,
        seed=given.seed,
    )
    folder = Path(tempfile.mkdtemp(prefix="penstock-loop-"))
    print(f"The logs of the workers: {folder}")
    try:
        verdict = run_loop(settings, folder, say=lambda line: print(line, flush=True))
    except (BrokerError, LoopFailed, WorkerFailed) as error:
        print(f"NOT PASSED: {error}")
        return 1
    print(json.dumps(verdict.figures, indent=2))
    for what, examples in verdict.complaints.items():
        print(f"{what}: {'; '.join(examples)}")
    print("NOT PASSED" if verdict.complaints else "PASSED: both tables agree, each record once, neighbours are equal")
    return 1 if verdict.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
