"""`penstock worker` with a stand-in: `python -m penstock.ops.bench.contestants.stand_in_worker worker --model … …`.

`--model null` sleeps for each sequence; any other model runs, and raises on poison. All else is the product's.
"""

import sys

from penstock.engine.types import Engine
from penstock.ops.bench.contestants.stand_in import PoisonableEngine, SleepingEngine, poison_token
from penstock.ops.cli.main import main
from penstock.worker import process
from penstock.worker.model_loading import require_encoder
from penstock.worker.model_settings import NULL_MODEL, ModelSettings
from penstock.worker.supervision import member, member_process

PROGRAM = (sys.executable, "-m", "penstock.ops.bench.contestants.stand_in_worker")


def install() -> None:
    """Give this process the stand-in in place of the product's engine."""
    load = process.load

    def load_stand_in(settings: ModelSettings) -> Engine:
        if settings.model == NULL_MODEL:
            return SleepingEngine(name=settings.served_name or NULL_MODEL)
        return PoisonableEngine(require_encoder(load(settings)), poison_token(settings.model))

    process.load = load_stand_in


if __name__ == "__main__":
    install()
    if sys.argv[1] == "worker":
        member_process.MEMBER = PROGRAM  # followed by what a supervisor tells its member
        main()
    else:
        sys.exit(member.main())
