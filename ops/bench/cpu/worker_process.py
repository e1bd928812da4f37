"""A worker for a benchmark: `run_members` with settings given as JSON, optionally sampled from SIGUSR1 on."""

import json
import signal
import sys
from pathlib import Path

from penstock.ops.bench.common.sampler import Sampler
from penstock.worker import WorkerSettings, run_members


def main(spec_json: str) -> int:
    """`spec_json`: {"settings": fields of WorkerSettings, "profile": file of the samples, or null}."""
    spec = json.loads(spec_json)
    settings = WorkerSettings(**spec["settings"])
    if spec["profile"] is None:
        return run_members(settings)
    sampler = Sampler()
    signal.signal(signal.SIGUSR1, lambda _signal, _frame: sampler.start())
    try:
        return run_members(settings)
    finally:
        sampler.stop()
        sampler.write(Path(spec["profile"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
