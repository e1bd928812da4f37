"""Tables of the kept runs of the step probe."""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.ops.bench.cellular.report.cellular_measures import SUITE
from penstock.ops.bench.common.kept_tables import Measures, of_each_machine, spreads
from penstock.ops.bench.common.markdown import table
from penstock.ops.bench.common.runs import Run
from penstock.ops.bench.common.verdicts import Spread

_STEPS = {  # each at the largest quantum of the run
    "steps_unfolded": "one step, µs",
    "steps_folded": "one step, folded, µs",
    "steps_chain": "one step, folded, of 32 in one launch, µs",
}
_PARTS = ("products", *_STEPS, "loop_folded", "loop_unfolded", "loop_torch", "nn_lstm_sorted")
_LOOPS = {
    "loop_folded": "embedding folded into the weights",
    "loop_unfolded": "not folded",
    "loop_torch": "the cell as torch operations",
}
_BASELINES = {
    "nn_lstm_sorted requests_per_s": "nn.LSTM, sorted and packed, all requests known before",
    "nn_lstm_padded requests_per_s_128_rows": "nn.LSTM, padded to buckets of lengths, batches of 128",
    "nn_lstm_padded requests_per_s_512_rows": "nn.LSTM, padded to buckets of lengths, batches of 512",
}

Found = Mapping[str, Spread]


def steps() -> str:
    """Table `cellular-steps`: a step beside its matrix product, and closed loops beside nn.LSTM."""
    return of_each_machine(SUITE, _PARTS, _steps)


def _steps(runs: Sequence[Run]) -> str:
    probes = [run for run in runs if "products" in run.record["parts"]]
    if not probes:
        return ""
    return f"{_step_table(probes)}\n\n{_loop_table(probes)}"


def _step_table(runs: Sequence[Run]) -> str:
    """A row for each number of rows, at the largest quantum."""
    found = spreads(runs, lambda record: _times(record["parts"]))
    numbers = dict.fromkeys(name.split()[1] for name in found)
    rows = [[number, *(str(found.get(f"{kind} {number}", "")) for kind in ("products", *_STEPS))] for number in numbers]
    return table(["rows", "matrix product of [x; h] alone, µs", *_STEPS.values()], rows)


def _loop_table(runs: Sequence[Run]) -> str:
    """Requests a second and the host's time for a quantum, of each closed loop; then those of nn.LSTM."""
    found = spreads(runs, lambda record: _rates(record["parts"]))
    rows = []
    for part, shown in _LOOPS.items():
        quanta = [name.split()[1] for name in found if name.startswith(part) and name.endswith("requests_per_s")]
        for quantum in quanta:
            measured = (found[f"{part} {quantum} {name}"] for name in ("requests_per_s", "host_us"))
            rows.append([f"{shown}, quantum {quantum}", *map(str, measured)])
    rows += [[shown, str(found[name]), ""] for name, shown in _BASELINES.items() if name in found]
    return table(["512 rows that are replaced as they end", "req/s", "host, µs a quantum"], rows)


def _times(parts: Mapping[str, Any]) -> Measures:
    """Microseconds by part and rows: "steps_folded 64"."""
    times = {f"products {rows}": us for rows, us in _result(parts, "products").get("unfolded", {}).items()}
    for part in _STEPS:
        for rows, by_quantum in _result(parts, part).items():
            times[f"{part} {rows}"] = list(by_quantum.values())[-1]
    return times


def _rates(parts: Mapping[str, Any]) -> Measures:
    """Figures by part, quantum and name: "loop_folded 8 requests_per_s"; of nn.LSTM by part and name."""
    loops = {
        f"{part} {quantum} {name}": float(figures[name])
        for part in _LOOPS
        for quantum, figures in _result(parts, part).items()
        for name in ("requests_per_s", "host_us")
    }
    baselines = {name: _result(parts, name.split()[0]).get(name.split()[1]) for name in _BASELINES}
    return loops | {name: float(figure) for name, figure in baselines.items() if figure is not None}


def _result(parts: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    """Empty for a part that a run lacks, or that failed."""
    return (parts.get(part) or {}).get("result") or {}
