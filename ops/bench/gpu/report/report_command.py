"""`python -m penstock.ops.bench.gpu report FILE --output-dir DIR`: a run as tables and plots."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from penstock.ops.bench.gpu.report.gpu_plots import draw
from penstock.ops.bench.gpu.report.run_document import render


def main(arguments: Sequence[str]) -> int:
    """Writes report.md and the plots; prints the tables."""
    parser = argparse.ArgumentParser(prog="python -m penstock.ops.bench.gpu report")
    parser.add_argument("result", type=Path, help="file of a kept run (JSON)")
    parser.add_argument("--output-dir", type=Path, required=True)
    chosen = parser.parse_args(arguments)
    record = json.loads(chosen.result.read_text(encoding="utf-8"))
    chosen.output_dir.mkdir(parents=True, exist_ok=True)
    text = render(record)
    (chosen.output_dir / "report.md").write_text(text, encoding="utf-8")
    plots = draw(record, chosen.output_dir)
    print(text)
    print(f"Written to {chosen.output_dir}: report.md, {', '.join(path.name for path in plots)}")
    return 0
