"""A result file as tables."""

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.ops.bench.common.comparison import Grid
from penstock.ops.bench.serving.loads.arrivals import BURSTS
from penstock.ops.bench.serving.loads.systems import PAPER_CHAIN, PAPER_RATES
from penstock.ops.bench.serving.report.run_cells import ms, percentile, shown_off, shown_rate, shown_share

Record = Mapping[str, Any]


def grids(record: Record) -> Iterator[Grid]:
    """Every table that the record has figures for."""
    parts = record["parts"]
    for workload in parts.get("saturation", ()):
        yield _saturation(workload)
        yield _lane_time(workload)
        yield _critical(workload)
        if workload["lengths"] in PAPER_RATES:
            yield _paper_ratios(workload)
    for workload in parts.get("paper", ()):
        yield _paper_latencies(workload)
    if "goodput" in parts:
        yield _goodput(parts["goodput"])
    if "bursts" in parts:
        yield _bursts(parts["bursts"])
    if "classes" in parts:
        yield _classes(parts["classes"])
    if "scheduler" in parts:
        yield _scheduler(parts["scheduler"])
    if "validation" in parts:
        yield _validation(parts["validation"])
    if "kafka" in parts:
        yield _kafka(parts["kafka"])
    if "loads" in parts:
        yield _loads(parts["loads"])
    if record["engines"]:
        yield _costs(record["engines"])


def _saturation(workload: Record) -> Grid:
    reference = next(row["saturation_per_s"] for row in workload["rows"] if row["system"] == "packed, none")
    rows = []
    for row in workload["rows"]:
        busy = row["overload"]
        rows.append(
            (
                row["system"],
                shown_rate(row["saturation_per_s"]),
                f"{row['saturation_per_s'] / reference:.2f}",
                f"{busy['mean_batch']:.1f}",
                f"{busy['padding']:.0%}" if row["engine"] != "packed" else "0%",
                f"{busy['scheduler_us']:.1f}",
                shown_share(busy["prediction_error"][1]),
            )
        )
    columns = ("system", "req/s", "x no batch", "sequences a batch", "padding", "scheduler µs/req", "p95 cost error")
    return Grid(f"Saturation, {workload['lengths']} tokens", columns, rows)


def _lane_time(workload: Record) -> Grid:
    """Upper bound on the gain of batching."""
    rows = [
        (kind, f"{us['alone']:.2f}", f"{us['full']:.2f}", str(us["in_full"]), f"{us['alone'] / us['full']:.2f}")
        for kind, us in workload["us_a_token"].items()
    ]
    columns = ("engine", "alone", "in a full batch", "requests in it", "ratio")
    return Grid(f"Predicted µs of a lane a token, {workload['lengths']} tokens", columns, rows)


def _critical(workload: Record) -> Grid:
    rows = []
    for row in workload["rows"]:
        latency = row["at_critical"]["latency_s"]
        late = "" if row["critical_per_s"] is not None else " (late)"
        rows.append(
            (
                row["system"],
                shown_rate(row["at_critical"]["offered_per_s"]) + late,
                f"{ms(latency['avg'])} ({ms(latency['min'])}, {ms(latency['max'])})",
                ms(latency["p50"]),
                ms(latency["p99"]),
            )
        )
    title = f"At each system's critical point, {workload['lengths']} tokens, SLO {workload['slo_s'] * 1e3:.0f} ms"
    return Grid(title, ("system", "req/s", "avg (min, max) ms", "p50 ms", "p99 ms"), rows)


def _paper_ratios(workload: Record) -> Grid:
    found = {row["system"]: row["saturation_per_s"] for row in workload["rows"]}
    theirs = PAPER_RATES[workload["lengths"]]
    ours = [found[name] for _, name in PAPER_CHAIN]
    rows = [
        (name, shown_rate(paper), f"{paper / theirs[0]:.2f}", system, shown_rate(rate), f"{rate / ours[0]:.2f}")
        for (name, system), paper, rate in zip(PAPER_CHAIN, theirs, ours, strict=True)
    ]
    best = found["penstock default"]
    rows.append(("", "", "", "penstock default", shown_rate(best), f"{best / ours[0]:.2f}"))
    columns = ("TurboTransformers", "req/s", "ratio", "here", "req/s", "ratio")
    return Grid(f"The paper's setting, {workload['lengths']} tokens, hungry, batches of at most 20", columns, rows)


def _paper_latencies(workload: Record) -> Grid:
    rows = []
    for row in workload["rows"]:
        cells = [_paper_cell(row["cells"].get(name)) for name, _ in PAPER_CHAIN]
        rows.append((shown_rate(row["rate_per_s"]), *cells))
    title = f"avg (min, max) ms of the paper's systems at their critical points, {workload['lengths']} tokens"
    return Grid(title, ("req/s", *(name for name, _ in PAPER_CHAIN)), rows)


def _paper_cell(cell: Record | None) -> str:
    if cell is None:
        return "+∞"
    latency = cell["latency_s"]
    return f"{ms(latency['avg'])} ({ms(latency['min'])}, {ms(latency['max'])})"


def _goodput(part: Record) -> Grid:
    rows = [
        (
            f"{row['load']:g} x",
            f"{row['slo_s'] * 1e3:.0f}",
            row["system"],
            shown_rate(row["goodput_per_s"]),
            shown_share(row["in_time_of_accepted"]),
            f"{sum(row['refused'].values()) / row['requests']:.1%}",
        )
        for row in part["rows"]
    ]
    title = f"Goodput, {part['lengths']} tokens, load in saturations of {part['saturation_per_s']:,.0f} req/s"
    return Grid(title, ("load", "SLO ms", "system", "goodput req/s", "accepted in time", "refused"), rows)


def _bursts(part: Record) -> Grid:
    rows = [
        (
            f"{row['load']:g} x",
            row["system"],
            _periods(row),
            shown_rate(row["goodput_per_s"]),
            shown_share(row["in_time_of_accepted"]),
            f"{sum(row['refused'].values()) / row['requests']:.1%}",
            ms(row["latency_s"]["p50"]),
            ms(row["latency_s"]["p99"]),
        )
        for row in part["rows"]
    ]
    title = f"Bursts of five times the mean rate, {part['lengths']} tokens, SLO {part['rows'][0]['slo_s'] * 1e3:.0f} ms"
    latencies = "p50 ms", "p99 ms"
    columns = ("load", "system", "whole periods", "goodput req/s", "accepted in time", "refused", *latencies)
    return Grid(title, columns, rows)


def _periods(row: Record) -> str:
    """Number of bursts; empty for older runs, which did not count them."""
    return f"{row['seconds'] / BURSTS.period_s:.0f}" if "seconds" in row else ""


def _classes(part: Record) -> Grid:
    rows = [
        (
            row["load"],
            shown_rate(row["goodput_per_s"]),
            ms(row["latency_s"]["p50"]),
            ms(row["latency_s"]["p99"]),
            shown_rate(row["bulk_per_s"]),
        )
        for row in part["rows"]
    ]
    title = f"Two classes: {part['online_per_s']:,.0f} online requests a second, {part['lengths']} tokens"
    return Grid(title, ("beside", "online goodput req/s", "online p50 ms", "online p99 ms", "bulk req/s"), rows)


def _scheduler(part: Record) -> Grid:
    rows = [(name, f"{us:.1f}", f"{part['us_three_slos'][name]:.1f}") for name, us in part["us"].items()]
    title = f"The scheduler alone, {part['queued']:,} queued: processor µs a request"
    return Grid(title, ("system", "one SLO", "three SLOs in turn"), rows)


def _validation(part: Record) -> Grid:
    rows = []
    for row in part["rows"]:
        simulated = row["simulated"]
        cells = []
        for key, show in (("answered_per_s", shown_rate), ("p99_s", ms)):
            figures = [row[run][key] for run in ("real", "again", "simulated")]
            cells += [*map(show, figures), shown_off(mean_of_real(row, key), simulated[key])]
        rows.append((f"{row['system']}, {row['load']:g} x", *cells))
    columns = ("one worker", "real req/s", "again", "simulated", "off", "real p99 ms", "again", "simulated", "off")
    return Grid(f"The simulator beside real runs, {part['lengths']} tokens", columns, rows)


def mean_of_real(row: Record, key: str) -> float | None:
    """Mean of the two real runs of a validation row; None where one of them has no figure."""
    first, again = row["real"][key], row["again"][key]
    return None if first is None or again is None else (first + again) / 2


def _kafka(part: Record) -> Grid:
    rows = []
    for row in part["rows"]:
        for way, key in (("in process", "in_process"), ("through Kafka", "through_kafka")):
            found, latency = row[key], row[key]["latency_s"]
            rows.append(
                (
                    f"{row['system']}, {way}",
                    shown_rate(found["rate_per_s"]) + ("" if found["was_sustained"] else " (late)"),
                    f"{found['rate_per_s'] / row['in_process']['rate_per_s']:.2f}",
                    f"{ms(latency['avg'])} ({ms(latency['min'])}, {ms(latency['max'])})",
                    ms(latency["p50"]),
                    ms(latency["p99"]),
                    f"{found['client_busy']:.2f}" if "client_busy" in found else "",
                )
            )
    columns = ("system", "req/s", "x in process", "avg (min, max) ms", "p50 ms", "p99 ms", "client, cores")
    where = f"{part['lengths']} tokens, SLO {part['slo_s'] * 1e3:.0f} ms; {part['broker']}"
    return Grid(f"Critical points in process and through Kafka, {where}", columns, rows)


def _loads(part: Record) -> Grid:
    rows = [
        (
            row["system"],
            f"{row['load']:g}",
            shown_rate(row["offered_per_s"]),
            shown_rate(row["goodput_per_s"]),
            shown_share(row["in_time_of_accepted"]),
            ms(row["latency_s"]["p50"]),
        )
        for row in part["rows"]
    ]
    columns = ("system", "load", "offered/s", "in time/s", "in time, of the accepted", "p50 ms")
    return Grid(f"Through Kafka at shares of {part['saturation_per_s']:,.0f} req/s, saturation", columns, rows)


def _costs(engines: Record) -> Grid:
    rows = [
        (
            kind,
            f"{engine['calibration_s']:.1f}",
            shown_share(percentile(engine["check_errors"], 0.5)),
            shown_share(percentile(engine["check_errors"], 0.95)),
            f"{engine['batches_run']:,}",
            *[shown_share(error) for error in engine["run_errors"]],
        )
        for kind, engine in engines.items()
    ]
    columns = ("engine", "calibration s", "p50 error of checks", "p95", "batches of real runs", "p50 error", "p95")
    return Grid("Cost models: predicted seconds beside measured", columns, rows)
