"""Tables of the kept runs of the probe of generation."""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.ops.bench.common.kept_tables import Measures, Record, of_each_machine, spreads, target_table
from penstock.ops.bench.common.markdown import table
from penstock.ops.bench.common.runs import Run

SUITE = "generation"
_SEARCHES = {"greedy": "greedy", "beams_4": "4 beams"}
_WAYS = {
    "continuous": "ours, joining at every quantum",
    "static": "ours, joining at the start of a batch",
    "transformers": "transformers' generate, batches of",
}
_PARTS = tuple(f"{way}_{search}" for search in _SEARCHES for way in (*_WAYS, "step", "arrivals"))


def throughput() -> str:
    """Table `generation`: saturated throughput, and a decoder step beside its floor."""
    return of_each_machine(SUITE, _PARTS, _throughput)


def against_targets() -> str:
    """Table `generation-targets`."""
    return of_each_machine(SUITE, _PARTS, lambda runs: target_table(SUITE, runs, measures))


def measures(record: Record) -> Measures:
    """The ratios of a run, as targets.json has them."""
    found: Measures = record["ratios"]
    return found


def _throughput(runs: Sequence[Run]) -> str:
    found = spreads(runs, lambda record: dict(_figures(record["parts"])))
    names = list(dict.fromkeys(name.partition(": ")[2] for name in found))
    rows = [[name, *(str(found.get(f"{search}: {name}", "")) for search in _SEARCHES)] for name in names]
    return table(["", *_SEARCHES.values()], rows)


def _figures(parts: Mapping[str, Any]) -> Sequence[tuple[str, float]]:
    """Name and figure: "greedy: ours, joining at every quantum, quantum 8, req/s"."""
    found: list[tuple[str, float]] = []
    for search in _SEARCHES:
        for way, shown in _WAYS.items():
            for size, figures in _result(parts, f"{way}_{search}").items():
                is_ours = isinstance(figures, Mapping)
                label = f"{shown}, quantum {size}, req/s" if is_ours else f"{shown} {size}, req/s"
                found.append((f"{search}: {label}", float(figures["requests_per_s"] if is_ours else figures)))
        for size, figures in _result(parts, f"step_{search}").items():
            found.append((f"{search}: one step of 512 sequences in quanta of {size}, µs", float(figures["device_us"])))
    return found


def _result(parts: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    """Empty for a part that a run lacks, or that failed."""
    return (parts.get(part) or {}).get("result") or {}
