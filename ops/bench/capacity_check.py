"""`python -m penstock.ops.bench.capacity_check`: what `penstock capacity` promises, in the simulator and in a real run.

A model is timed as a worker does it. By its cost table and an SLO, `penstock capacity` plans one machine for a load of
up to six tenths of what full batches answer. That load, and one that full batches would not answer either, are
offered to a worker's scheduler and engine on this machine, without Kafka, and to the simulator. The first must be
answered within the SLO, and the second must not. It takes less than a minute. The run is kept.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.ops.bench.common.kept_tables import of_newest_machine
from penstock.ops.bench.common.machine import describe_machine
from penstock.ops.bench.common.markdown import table
from penstock.ops.bench.common.runs import RESULTS, begin, finite, keep
from penstock.ops.bench.serving.harness import BenchHarness, Load
from penstock.ops.bench.serving.loads.outcome import Outcome
from penstock.ops.bench.serving.loads.systems import DEFAULT
from penstock.ops.cli.planning.capacity_plan import UTILISATION, CapacityPlan, DeviceCapacity, plan_capacity
from penstock.worker.telemetry.logs import configure_logs

Row = dict[str, Any]

_SUITE = "capacity"
_LENGTHS = "2-100"
_SLO_S = 0.2
_TOO_MUCH = 1.25  # times what full batches answer
_IN_TIME = 0.999  # as the manual promises


def check(bench: BenchHarness, *, seconds: float, slo_s: float = _SLO_S) -> list[Row]:
    """Offer the two loads for some seconds each. `bench`: of a model whose longest request fits the SLO."""
    capacity_per_s = _plan(bench, 1.0, slo_s).device_per_s
    rates = [part * capacity_per_s for part in (UTILISATION, _TOO_MUCH)]
    loads = [Load(_LENGTHS, rate, seconds) for rate in rates]
    system = bench.system(DEFAULT, slo_s)
    # Before the real runs, from which the cost table learns.
    rows: list[Row] = [
        {
            "name": f"{rate / capacity_per_s:.0%} of what full batches answer",
            "rate_per_s": rate,
            "machines": _plan(bench, rate * (1 - 1e-9), slo_s).devices,  # despite rounding
            "simulated": _answers(bench.simulated(system, load), bench.num_lanes, slo_s),
        }
        for rate, load in zip(rates, loads, strict=True)
    ]
    for row, load in zip(rows, loads, strict=True):
        row["real"] = _answers(bench.real(system, load, grace_s=2 * slo_s), bench.num_lanes, slo_s)
    return rows


def holds(load: Row) -> bool:
    """Whether one machine answers in time exactly if the plan says that one is enough."""
    return all((load[run]["in_time"] >= _IN_TIME) == (load["machines"] == 1) for run in ("simulated", "real"))


def _answers(outcome: Outcome, num_lanes: int, slo_s: float) -> dict[str, float]:
    """A percentile is infinite if too many requests were rejected. Shares are of all requests, and of lanes' time."""
    return {
        "p50_s": outcome.percentile_s(50),
        "p99_s": outcome.percentile_s(99),
        "in_time": float((outcome.latency_s <= slo_s).mean()),
        "answered_per_s": outcome.answered_per_s(),
        "busy": outcome.busy_s / (num_lanes * outcome.span_s),
    }


def _plan(bench: BenchHarness, rate_per_s: float, slo_s: float) -> CapacityPlan:
    return plan_capacity(
        bench.table("packed"),
        DeviceCapacity(is_gpu=False, lanes=bench.num_lanes, members=1),
        bench.lengths(_LENGTHS, 20_000),
        rate_per_s=rate_per_s,
        slo_s=slo_s,
        max_sequences=bench.settings.max_batch_sequences,
        max_tokens=bench.settings.max_batch_tokens,
    )


def kept_table() -> str:
    """Table `capacity`: of the newest runs."""
    return of_newest_machine(_SUITE, [_SUITE], lambda runs: grid([run.record["parts"][_SUITE] for run in runs]))


def grid(parts: Sequence[Mapping[str, Any]]) -> str:
    """A table of runs, as their files hold them. In each pair the simulator's figure comes first."""
    titles = ["cores, load", "sequences/s", "machines planned", "p99, ms", "in time", "lanes busy"]
    return table(titles, [_row(part["lanes"], one) for part in parts for one in part["loads"]])


def _row(lanes: int, load: Mapping[str, Any]) -> list[str]:
    simulated, real = load["simulated"], load["real"]
    shares = [f"{simulated[name]:.1%}, {real[name]:.1%}" for name in ("in_time", "busy")]
    latency = f"{_ms(simulated['p99_s'])}, {_ms(real['p99_s'])}"
    return [f"{lanes}, {load['name']}", f"{load['rate_per_s']:,.0f}", str(load["machines"]), latency, *shares]


def _ms(seconds: float | None) -> str:
    return "rejected" if seconds is None else f"{seconds * 1e3:.0f}"


def main() -> int:
    """Exit code: 0 if the plan's promise holds, else 1."""
    parser = argparse.ArgumentParser(prog="python -m penstock.ops.bench.capacity_check", description=__doc__)
    parser.add_argument("--model", type=Path, help="checkpoint; default: all-MiniLM-L6-v2's shape, with random weights")
    parser.add_argument("--lanes", type=int, help="cores to use; default: all")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each load")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of kept runs")
    chosen = parser.parse_args()
    configure_logs("console", "warning")
    header = begin(_SUITE, describe_machine())
    with tempfile.TemporaryDirectory() as folder:
        model = chosen.model or _random_minilm(Path(folder))
        bench = BenchHarness.load(model, device="cpu", dtype="float32", lanes=chosen.lanes)
        checked = check(bench, seconds=chosen.seconds)
    part = finite({"slo_s": _SLO_S, "lanes": bench.num_lanes, "loads": checked})
    path = keep({**header, "engines": bench.describe(), "parts": {_SUITE: part}}, chosen.output)
    print(grid([part]))
    print(f"Kept: {path}")
    return 0 if all(map(holds, checked)) else 1


def _random_minilm(folder: Path) -> Path:
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    shape = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
    BertModel(shape).save_pretrained(folder)
    return folder


if __name__ == "__main__":
    sys.exit(main())
