"""Sections of the report about accuracy: parity, families and DeBERTa."""

import math
from collections.abc import Mapping
from typing import Any

from penstock.ops.bench.common.markdown import table
from penstock.ops.bench.gpu.report.arithmetic import FLOOR, FROM_HOST, OURS

Result = Mapping[str, Any]

_OF_OTHER_CHECKS = ("alone vs pack", "batch mates", "vectors")  # they count sequences again; older runs hold the second


def parity_section(part: Result, title: str = "## Parity, fp16 against transformers in float32") -> str:
    """Smallest and mean cosines, and largest differences."""
    rows = []
    for row in part["rows"]:
        for side in ("ours", "transformers fp16"):
            figures = row[side]
            cosines = [f"{figures[key]:.7f}" for key in ("min_cosine", "mean_cosine")]
            rows.append(
                [row["name"], side, *cosines, f"{figures['max_relative']:.1e}", f"{figures['norm_relative']:.1e}"]
            )
    columns = ["batch", "side", "smallest cosine", "mean cosine", "largest difference / largest value", "norms"]
    return f"{title}\n\n" + table(columns, rows)


def families_section(part: Result) -> str:
    """Every family at full size."""
    rows = []
    for row in part["rows"]:
        checks = row["checks"]
        cells = []
        for side in ("ours", "theirs"):
            cells.append(f"{min(check[side]['cosine_min'] for check in checks):.6f}")
            cells.append(f"{max(check[side]['error'] for check in checks):.1e}")
        met = "yes" if all(check["passed"] for check in checks) else "no"
        inputs = sum(check["num_sequences"] for check in checks if check["what"] not in _OF_OTHER_CHECKS)
        rows.append([row["name"], row["packs"], inputs, *cells, met])
    columns = [
        "model",
        "random packs",
        "sequences",
        "smallest cosine",
        "largest error",
        "transformers fp16",
        "its error",
        "passed",
    ]
    return (
        "## Every family at full size, random weights, fp16 against transformers in float32\n\n"
        "The checks of `penstock parity`: 1, 2, 127, 128, 129 and 512 tokens; random packs; one sequence alone and in "
        "a batch; the vectors of the reply. A check passes with no cosine below 0.9999. The error is the largest "
        "difference over the largest value.\n\n" + table(columns, rows)
    )


def deberta_section(part: Result) -> str:
    """Times and parity of DeBERTa."""
    rows = []
    for point in part["points"]:
        ms = point["ms"]
        names = (OURS, FROM_HOST, "transformers", FLOOR)
        ours, from_host, theirs, floor = (ms.get(name, math.nan) for name in names)
        name = f"{point['batch']} x {point['max_tokens']}"
        rows.append([name, point["tokens"], ours, from_host, theirs, floor, theirs / ours, ours / floor])
    columns = ["batch x maximum", "tokens", "ours, ms", "from the host, ms", "transformers, ms", "floor, ms"]
    parity = parity_section({"rows": part["parity"]}, "Parity:")
    title = f"## DeBERTa-v3-base, mean length {part['mean_ratio']} of the maximum"
    return f"{title}\n\n{table([*columns, 'times faster', 'ours / floor'], rows)}\n\n{parity}"
