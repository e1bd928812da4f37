"""A GPU run as one Markdown document."""

from collections.abc import Mapping
from typing import Any

from penstock.ops.bench.gpu.report.arithmetic import results_of
from penstock.ops.bench.gpu.report.sections import SECTIONS


def render(record: Mapping[str, Any]) -> str:
    """All tables of a run."""
    results = results_of(record["parts"])
    sections = [SECTIONS[name](results[name]) for name in SECTIONS if name in results]
    return "\n\n".join([_header(record), *sections, _failures(record)]) + "\n"


def _header(record: Mapping[str, Any]) -> str:
    machine = record["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine.get("versions", {}).items() if version)
    smi = ", ".join(f"{name} {value}" for name, value in machine.get("nvidia_smi", {}).items())
    seconds = ", ".join(f"{name} {part['seconds']:.0f}" for name, part in record["parts"].items() if part["seconds"])
    return "\n".join(
        [
            f"# GPU benchmarks, {machine.get('gpu', 'no machine was recorded')}",
            "",
            f"- `{record['command']}`, {record['started']}",
            f"- commit {record['commit'] or 'not given'}, seed {record['seed']}",
            f"- {versions}; CUDA {machine.get('cuda')}; {smi or 'nvidia-smi did not answer'}",
            f"- seconds of each part: {seconds}",
            "",
            "All times are medians within this run. In the grid and for single requests the inputs are on the device "
            "already, unless a row says 'from the host'. The floor is the model's linear layers over the same tokens "
            "in one CUDA graph, and nothing else.",
        ]
    )


def _failures(record: Mapping[str, Any]) -> str:
    lines = []
    for name, part in record["parts"].items():
        if part["error"]:
            lines.append(f"- {name}: {part['error']}")
        lines += [
            f"- {name}: {contestant} failed {f['count']} times, first at {f['where']}: {f['error']}"
            for contestant, f in part["failures"].items()
        ]
    return "## What failed\n\n" + ("\n".join(lines) if lines else "Nothing.")
