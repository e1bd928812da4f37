"""`python -m penstock.ops.bench.common.part_runner FOLDER ORDER`: the process that measures, started by `runner.py`.

ORDER is JSON: bench, options, seconds_left, and parts. It writes one file for each part, and one of the machine.
"""

import json
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.ops.bench.common.part_bench import PartBench, deadline
from penstock.ops.bench.common.runs import write_json
from penstock.ops.bench.common.suite import named

BENCH_IS_SICK = 3  # exit code: the parts that are left need a new process
STOPPED_AFTER = 3.0  # times the budget


def main() -> int:
    """Parts are done in order, each into FOLDER/part.json."""
    folder, order = Path(sys.argv[1]), json.loads(sys.argv[2])
    ends = time.monotonic() + order["seconds_left"]
    warnings.filterwarnings("ignore")  # of prototypes of torch, at every call
    bench: PartBench = named(order["bench"])(order["options"])
    write_json(folder / "machine.json", bench.machine())
    try:
        for name, (function, budget_s, *arguments) in order["parts"].items():
            record = run_part(function, arguments, bench, budget_s, ends - time.monotonic())
            write_json(folder / f"{name}.json", record)
            print(f"{name}: {record['error'] or 'done'} ({record['seconds']:.1f} s)", flush=True)
            if not bench.is_well():
                return BENCH_IS_SICK
    finally:
        bench.close()
    return 0


def run_part(
    function: str, arguments: Sequence[Any], bench: PartBench, budget_s: float, seconds_left: float
) -> dict[str, Any]:
    """Its figures, or the error that ended it; and the contestants that failed in it."""
    started, bench.failures = time.monotonic(), {}
    result: dict[str, Any] | None = None
    error: str | None = None
    if seconds_left < budget_s / 2:
        error = f"not begun: {max(0.0, seconds_left):.0f} s were left"
    else:
        seconds = min(STOPPED_AFTER * budget_s, seconds_left)
        bench.ends = started + seconds
        try:
            with bench.mode(), deadline(seconds, bench.again_s):
                result = named(function)(bench, *arguments)
        except Exception as failure:  # whatever it is, it belongs into the file, and the other parts go on
            traceback.print_exc()
            error = f"{type(failure).__name__}: {failure}"[:2000]
    seconds = time.monotonic() - started
    return {"error": error, "seconds": seconds, "failures": bench.failures, **bench.after(), "result": result}


if __name__ == "__main__":
    sys.exit(main())
