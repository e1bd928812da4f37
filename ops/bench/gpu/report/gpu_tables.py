"""Tables of the kept GPU runs, for README.md and the notes."""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.ops.bench.common.kept_tables import of_each_machine, spreads, target_table, versions
from penstock.ops.bench.common.markdown import table
from penstock.ops.bench.common.runs import Run, current_runs, kept_runs, machines
from penstock.ops.bench.common.verdicts import Spread
from penstock.ops.bench.gpu.report.arithmetic import FLOOR, FROM_HOST, OURS, SDPA_SORTED, results_of
from penstock.ops.bench.gpu.report.gpu_measures import measures
from penstock.ops.bench.gpu.report.run_document import render

_BACKLOGS = ("2-100", "5-500", "SQuAD slice")
_RANGES = ("2-100", "5-500")
_SDPA = "transformers SDPA"
_FROM_HOST = ", from the host"
_WITH_TARGETS = ("grid", "single", "backlog", "kernels", "deberta", "memory", "families")

Found = Mapping[str, Spread]


def headline() -> str:
    """Table `gpu-headline`: backlogs and single requests beside the best alternative of the same runs."""
    return of_each_machine("gpu", ("backlog", "compile", "single"), _headline)


def backlogs() -> str:
    """Table `gpu-backlog`: every contestant."""
    return of_each_machine("gpu", ("backlog", "compile"), _backlogs)


def grid() -> str:
    """Table `gpu-grid`: ByteTransformer's grid, geometric mean of time over the floor."""
    return of_each_machine("gpu", ("grid",), _grid)


def kernels() -> str:
    """Table `gpu-kernels`: each kernel beside a copy of as many bytes, and attention beside FlashAttention-2."""
    return of_each_machine("gpu", ("kernels",), _kernels)


def against_targets() -> str:
    """Table `gpu-targets`."""
    return of_each_machine("gpu", _WITH_TARGETS, lambda runs: target_table("gpu", runs, measures))


def runs() -> str:
    """Table `gpu-runs`: what each kept run ran with."""
    rows = []
    for machine in machines("gpu"):
        for run in kept_runs("gpu", machine):
            driver = run.record["machine"].get("nvidia_smi", {}).get("driver_version", "not recorded")
            rows.append([run.record["started"][:16], run.commit, versions(run), driver, f"`{run.record['command']}`"])
    return table(["started", "commit", "versions", "driver", "command"], rows)


def report() -> str:
    """Table `gpu-report`: all tables of each machine's newest run."""
    newest = [current_runs("gpu", machine)[-1] for machine in machines("gpu")]
    return "\n\n".join(render(run.record).rstrip() for run in newest)


def best_of(found: Found, prefix: str, unit: str, *, lowest: bool = False) -> tuple[str, Spread] | None:
    """The alternative with the best median: neither ours nor the floor."""
    named = {
        name.removeprefix(prefix).removesuffix(unit): values
        for name, values in found.items()
        if name.startswith(prefix) and name.endswith(unit)
    }
    others = {
        name: values
        for name, values in named.items()
        if not name.startswith(OURS) and name != FLOOR and not name.endswith(_FROM_HOST)
    }
    if not others:
        return None
    choose = min if lowest else max
    return choose(others.items(), key=lambda item: item[1].median)


def _headline(kept: Sequence[Run]) -> str:
    found = spreads(kept, measures)
    rows = [row for lengths in _BACKLOGS for row in _backlog_row(found, lengths)]
    rows += [row for lengths in _RANGES for row in _single_rows(found, lengths)]
    return table(
        ["work", "penstock", "best alternative of the run", "transformers SDPA", "cuBLAS products alone"], rows
    )


def _backlog_row(found: Found, lengths: str) -> list[list[str]]:
    prefix = f"backlog, {lengths}, "
    best = best_of(found, prefix, ", req/s")
    if best is None or f"{prefix}{OURS}, req/s" not in found:
        return []
    tokens = lengths if lengths not in _RANGES else f"{lengths} tokens"
    cells = [found.get(f"{prefix}{name}, req/s") for name in (OURS, SDPA_SORTED, FLOOR)]
    ours, theirs, floor = ("" if cell is None else str(cell) for cell in cells)
    return [[f"backlog of 4,096 requests, {tokens}, req/s", ours, f"{best[0]}: {best[1]}", theirs, floor]]


def _single_rows(found: Found, lengths: str) -> list[list[str]]:
    prefix = f"one request, {lengths} tokens, "
    if f"{prefix}{OURS}, ms" not in found:
        return []
    rows = []
    for work, suffix, ours in (("inputs on the device", "", OURS), ("from the host", _FROM_HOST, FROM_HOST)):
        best = best_of(found, prefix, f"{suffix}, ms", lowest=True)
        beside = "not measured" if best is None else f"{best[0]}: {best[1]}"
        cells = (found.get(f"{prefix}{name}, ms") for name in (ours, f"{_SDPA}{suffix}", FLOOR))
        shown, theirs, floor = ("" if cell is None else str(cell) for cell in cells)
        rows.append([f"{prefix}{work}, ms", shown, beside, theirs, floor])
    return rows


def _backlogs(kept: Sequence[Run]) -> str:
    found = spreads(kept, measures)
    rows: list[list[Any]] = []
    for lengths in _BACKLOGS:
        prefix = f"backlog, {lengths}, "
        floor = found.get(f"{prefix}{FLOOR}, req/s")
        named = [name for name in found if name.startswith(prefix) and name.endswith(", req/s")]
        for name in sorted(named, key=lambda name: -found[name].median):
            share = None if floor is None else found[name].median / floor.median
            rows.append([lengths, name.removeprefix(prefix).removesuffix(", req/s"), str(found[name]), share])
    rows += _not_run(kept[-1])
    return table(["tokens", "contestant", "req/s", "share of the floor"], rows)


def _not_run(run: Run) -> list[list[Any]]:
    """Contestants of the newest run that its machine lacked something for."""
    workloads = results_of(run.record["parts"]).get("backlog", {}).get("workloads", [])
    return [
        [workload["name"], name, f"not run: {why}", ""]
        for workload in workloads
        for name, why in workload.get("not_run", {}).items()
    ]


def _grid(kept: Sequence[Run]) -> str:
    found = spreads(kept, measures)
    rows = [
        [name.removeprefix("grid, ").removesuffix(", over the floor"), str(values)]
        for name, values in found.items()
        if name.startswith("grid, ")
    ]
    return table(["contestant", "time over the floor, geomean"], rows)


def _kernels(kept: Sequence[Run]) -> str:
    found = spreads(kept, measures)
    works = [
        name.removesuffix(", µs")
        for name in found
        if name.startswith("kernel, ") and f"{name[:-4]}, torch, µs" in found
    ]
    rows = [
        [
            work.removeprefix("kernel, "),
            *(str(found[f"{work}, {what}"]) for what in ("µs", "copy, µs", "torch, µs", "share of the copy")),
        ]
        for work in works
    ]
    attention = [
        name.removesuffix(", FlashAttention-2, µs") for name in found if name.endswith(", FlashAttention-2, µs")
    ]
    beside = [
        [
            work.removeprefix("kernel, "),
            *(str(found[f"{work}, {what}"]) for what in ("µs", "FlashAttention-2, µs", "byte floor, µs")),
        ]
        for work in attention
    ]
    return "\n\n".join(
        [
            table(["kernel", "µs", "copy of as many bytes, µs", "torch, µs", "share of the copy ceiling"], rows),
            table(["attention, one layer", "µs", "FlashAttention-2, µs", "byte floor, µs"], beside),
        ]
    )
