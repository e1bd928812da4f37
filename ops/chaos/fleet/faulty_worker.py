"""`penstock worker` with members whose engine and clock fail: `python -m …faulty_worker FOLDER SEED options…`."""

import sys

from penstock.ops.cli.main import main
from penstock.worker.supervision import member_process

if __name__ == "__main__":
    folder, seed, *options = sys.argv[1:]
    member_process.MEMBER = (sys.executable, "-m", "penstock.ops.chaos.fleet.faulty_member", folder, seed)
    sys.argv = ["penstock", "worker", *options]
    main()
