"""`python -m tests.fuzz.million`: more than a million inputs. Exit code 1 if any decoder broke its contract."""

import argparse
import sys
import time

from tests.fuzz.decoders import DECODERS
from tests.fuzz.fuzzing import fuzz

_NUM_INPUTS = 1_000_000


def main() -> int:
    """Fuzz all decoders, each with an equal share."""
    options = argparse.ArgumentParser(prog="python -m tests.fuzz.million", description=__doc__)
    options.add_argument("--seed", type=int, default=1)
    seed, share, faults = options.parse_args().seed, _NUM_INPUTS // len(DECODERS) + 1, []
    for decoder in DECODERS:
        started = time.monotonic()
        found = fuzz(decoder, share, seed)
        print(
            f"{decoder.name:33} {share:,} inputs, {time.monotonic() - started:.1f} s, {len(found)} faults", flush=True
        )
        faults += found
    print(*faults, sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
