"""`penstock worker` with the tokenizer of its checkpoint and no model: `python -m …null_worker worker --model …`."""

import sys

from penstock.engine import NullEngine
from penstock.ops.cli.main import main
from penstock.worker import process
from penstock.worker.model_settings import ModelSettings

PROGRAM = (sys.executable, "-m", "penstock.ops.bench.contestants.null_worker")
_DIM = 4  # of the result, which is short beside the record


def _load(settings: ModelSettings) -> NullEngine:
    return NullEngine(_DIM, name=settings.served_name or "null")


if __name__ == "__main__":
    process.load = _load
    main()
