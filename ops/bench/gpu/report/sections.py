"""One section of the report for each part."""

from collections.abc import Callable, Mapping
from typing import Any

from penstock.ops.bench.common.markdown import table
from penstock.ops.bench.gpu.report.accuracy_sections import deberta_section, families_section, parity_section
from penstock.ops.bench.gpu.report.arithmetic import (
    FLOOR,
    contestants,
    geomean,
    mean_ms,
    over_floor,
    requests_per_s,
    single_over_floor,
)

Result = Mapping[str, Any]


def _ceilings(part: Result) -> str:
    rows = [[str(row["tokens"]), row["ms"], row["flops_per_s"] / 1e12] for row in part["floor"]]
    ceilings = (
        f"Copy {part['copy_bytes_per_s'] / 1e12:.2f} TB/s, fp16 product {part['gemm_flops_per_s'] / 1e12:.0f} TFLOP/s."
    )
    return f"## Ceilings\n\n{ceilings}\n\n" + table(["tokens", "floor, ms", "TFLOP/s"], rows)


def _grid(part: Result) -> str:
    points = part["points"]
    names = contestants(points)
    geomeans = [[name, geomean(over_floor(points, name)), len(over_floor(points, name))] for name in names]
    keys = dict.fromkeys((point["batch"], point["max_tokens"]) for point in points)
    rows = []
    for batch, max_tokens in keys:
        draws = [p for p in points if (p["batch"], p["max_tokens"]) == (batch, max_tokens)]
        tokens = round(sum(p["tokens"] for p in draws) / len(draws))
        rows.append([f"{batch} x {max_tokens}", tokens, *[mean_ms(draws, name) for name in names]])
    return "\n\n".join(
        [
            f"## ByteTransformer's grid, mean length {part['mean_ratio']} of the maximum",
            table(["contestant", "geomean of time / floor", "points"], geomeans),
            "Milliseconds, mean over the draws of a point:",
            table(["batch x maximum", "tokens", *names], rows),
        ]
    )


def _single(part: Result) -> str:
    rows = []
    for workload in part["workloads"]:
        points = workload["points"]
        for name in contestants(points):
            ratio = single_over_floor(points, name)
            rows.append([f"{workload['low']}-{workload['high']}", name, mean_ms(points, name), ratio])
    return "## One request at a time\n\n" + table(["tokens", "contestant", "ms, mean", "over the floor"], rows)


def _backlog(part: Result) -> str:
    rows, tried = [], []
    for workload in part["workloads"]:
        rates = requests_per_s(workload)
        for name, rate in rates.items():
            share = rate / rates[FLOOR] if FLOOR in rates else None
            tokens_per_s = rate * workload["tokens"] / workload["requests"]
            rounds = ", ".join(f"{seconds:.4f}" for seconds in workload.get("rounds_s", {}).get(name, []))
            rows.append([workload["name"], name, rate, tokens_per_s, share, rounds])
        rows += [[workload["name"], name, f"not run: {why}"] + [""] * 3 for name, why in _not_run(workload)]
        for name, seconds in workload["tried"].items():
            tried += [[workload["name"], f"{name}: {way}", workload["requests"] / s] for way, s in seconds.items()]
    return "\n\n".join(
        [
            "## Backlogs",
            table(["tokens", "contestant", "req/s", "tokens/s", "share of the floor", "rounds, s"], rows),
            "Rates are medians of rounds in which the contestants take turns, each in its fastest way. The ways were "
            "tried before, one contestant after the other, the better of two passes each:",
            table(["tokens", "way", "req/s"], tried),
        ]
    )


def _not_run(workload: Result) -> list[tuple[str, str]]:
    return list(workload.get("not_run", {}).items())


def _ablation(part: Result) -> str:
    sections = [f"## Ablation (ByteTransformer's Figure 14), batch {part['batch']}"]
    for key, what in (
        ("ms", "launched from the host"),
        ("in_graph_ms", "within a CUDA graph: the device's work alone"),
    ):
        names = list(dict.fromkeys(name for point in part["points"] for name in point[key]))
        columns = [f"at most {point['max_tokens']}" for point in part["points"]]
        rows = [[name, *[point[key].get(name) for point in part["points"]]] for name in names]
        sections += [f"Milliseconds, {what}:", table(["step", *columns], rows)]
    cosines = [value for point in part["points"] for value in point["min_cosine_to_plain"].values()]
    return "\n\n".join([*sections, f"Smallest cosine of any step to the plain one: {min(cosines):.6f}."])


def _fill(part: Result) -> str:
    names = contestants(part["points"])
    rows = [[f"{p['ratio']:.1f}", p["tokens"], *[p["ms"].get(name) for name in names]] for p in part["points"]]
    title = f"## Mean length over maximum (ByteTransformer's Figure 15c), {part['batch']} x {part['max_tokens']}"
    return f"{title}\n\nMilliseconds.\n\n" + table(["mean / maximum", "tokens", *names], rows)


def _products(part: Result) -> str:
    ways = list(part["rows"][0]["us"])
    rows = [
        [row["product"], row["tokens"], row["chosen"], *[row["us"].get(way) for way in ways]] for row in part["rows"]
    ]
    title = "## Products of BERT-base with what follows them, weights beyond the L2 cache"
    return f"{title}\n\nMicroseconds; 'ours' is what the engine does.\n\n" + table(
        ["product", "tokens", "ours is", *ways], rows
    )


def _kernels(part: Result) -> str:
    rows = [
        [
            row["kernel"],
            row["tokens"],
            row["us"],
            row["bytes"] / row["us"] / 1e3,
            row["share_of_copy"],
            row["torch_us"],
            row["copy_us"],
        ]
        for row in part["rows"]
    ]
    attention = [
        [
            f"{row['tokens']:,} in {row['sequences']} of {row['lengths']}",
            row["us"],
            row["flash_us"],
            row["us"] / row["flash_us"],
            row["byte_floor_us"],
        ]
        for row in part["attention"]
    ]
    return "\n\n".join(
        [
            f"## Kernels, hidden size {part['hidden']}, buffers beyond the L2 cache",
            table(
                ["kernel", "tokens", "µs", "GB/s", "share of the copy", "torch, µs", "a copy of as many bytes, µs"],
                rows,
            ),
            "Attention, a layer, by the kernel that the engine chooses: `short_attention` for the 1,024 tokens, "
            "`packed_attention` for the others.",
            table(["tokens in sequences", "µs", "FA2 varlen, µs", "ratio", "byte floor, µs"], attention),
        ]
    )


def _memory(part: Result) -> str:
    rows = []
    for name, figures in part["contestants"].items():
        per_request = figures["per_request"]
        rows.append(
            [
                name,
                figures["peak_tensor_bytes"] / 2**20,
                per_request["tensors_allocated"],
                per_request["tensor_bytes_allocated"] / 2**20,
                per_request["device_bytes_allocated"] / 2**20,
                per_request["device_bytes_freed"] / 2**20,
                figures["latency_p50_ms"],
            ]
        )
    columns = [
        "contestant",
        "peak of tensors, MiB",
        "tensors a request",
        "MiB of tensors a request",
    ]
    columns += ["device MiB allocated a request", "device MiB freed a request", "latency p50, ms"]
    planner = part["planner"]
    text = (
        f"Planning a batch of {planner['buffers']} buffers anew: p50 {planner['p50_us']:.1f} µs, "
        f"p99 {planner['p99_us']:.1f} µs; lower bound over bytes used: "
        f"mean {planner['mean_lower_bound_over_used']:.3f}, smallest {planner['min_lower_bound_over_used']:.3f}."
    )
    if "planned" in part["contestants"]:
        share = planner["p50_us"] / 1e3 / part["contestants"]["planned"]["latency_p50_ms"]
        text += f" p50 of planning is {100 * share:.2f} % of the latency's p50, without graphs."
    title = f"## Memory, {part['requests']:,} requests of 5-500 tokens, the first {part['warm_up']} of which warm up"
    return f"{title}\n\n{table(columns, rows)}\n\n{text}"


def _compile(part: Result) -> str:
    rows = [
        [
            f"{p['batch']} x {p['max_tokens']}",
            p["tokens"],
            p["ms"].get("torch.compile"),
            *over_floor([p], "torch.compile"),
        ]
        for p in part["points"]
    ]
    backlogs = [[b["name"], b["requests"] / b["seconds"]] for b in part["backlogs"] if b["seconds"] is not None]
    ratio = geomean(over_floor(part["points"], "torch.compile"))
    return "\n\n".join(
        [
            f"## torch.compile, dynamic shapes (first calls took {part['first_calls_s']:.0f} s)",
            table(["batch x maximum", "tokens", "ms", "over the floor"], rows),
            f"Geomean over these points: {ratio:.2f}. Backlogs, sorted, batch 256:",
            table(["tokens", "req/s"], backlogs),
        ]
    )


SECTIONS: dict[str, Callable[[Result], str]] = {
    "ceilings": _ceilings,
    "grid": _grid,
    "single": _single,
    "backlog": _backlog,
    "compile": _compile,
    "ablation": _ablation,
    "fill": _fill,
    "kernels": _kernels,
    "products": _products,
    "deberta": deberta_section,
    "memory": _memory,
    "parity": parity_section,
    "families": families_section,
}
