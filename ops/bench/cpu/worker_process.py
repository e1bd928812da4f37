"""A worker for a benchmark: `run_members` with settings given as JSON."""

import json
import sys

from penstock.worker import WorkerSettings, run_members


def main(spec_json: str) -> int:
    """`spec_json`: {"settings": fields of WorkerSettings}."""
    return run_members(WorkerSettings(**json.loads(spec_json)["settings"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
