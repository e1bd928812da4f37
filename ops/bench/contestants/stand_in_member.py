"""A supervised member with a stand-in: `python -m penstock.ops.bench.contestants.stand_in_member FD CPUS`."""

import sys

from penstock.ops.bench.contestants.stand_in_worker import install
from penstock.worker.supervision import member

if __name__ == "__main__":
    install()
    sys.exit(member.main())
