"""The probe of generation runs all of its parts on a CPU, at tiny sizes, and counts the least that a step costs."""

import json
from pathlib import Path

import pytest

from penstock.ops.bench.cellular.generation.generation_models import MARIAN, step_floor
from penstock.ops.bench.cellular.generation.generation_probe import main
from penstock.ops.bench.cellular.generation.generation_ratios import ratios


@pytest.mark.slow
def test_every_part_has_figures(tmp_path: Path) -> None:
    assert main(["--device", "cpu", "--output", str(tmp_path), "--seconds", "0.05"]) == 0
    (written,) = tmp_path.glob("generation/*/*.json")
    run = json.loads(written.read_text(encoding="utf-8"))
    assert len(run["ratios"]) == 10
    assert run["suite"] == "generation"
    record = run["parts"]
    assert all(part["error"] is None for part in record.values())
    for way in ("continuous", "static"):
        assert record[f"{way}_beams_4"]["result"]["2"]["requests_per_s"] > 0
        assert [one["left"] for one in record["arrivals_greedy"]["result"][way]] == [0] * 5


def test_a_part_that_failed_has_no_ratio_and_the_others_have_theirs() -> None:
    failed = {"error": "DeadlinePassed: not finished after 21 s", "result": None}
    figures = {"error": None, "result": {"4": {"requests_per_s": 30.0, "ratio": 4.0}}}
    names = ("continuous_greedy", "static_greedy", "step_greedy")
    assert ratios({**dict.fromkeys(names, figures), "arrivals_greedy": failed, "transformers_greedy": failed}) == {
        "greedy: continuous over static": 1.0,
        "greedy: step over its floor": 4.0,
    }


def test_the_floor_of_a_step_counts_keys_of_beams_apart_and_of_their_source_once() -> None:
    alone, more = (step_floor(MARIAN, [past], [50], beams=1) for past in (10, 11))
    position = 2 * 2 * 6 * 512  # bytes of a key and a value in all layers
    assert more.bytes - alone.bytes == position
    assert step_floor(MARIAN, [10], [50], beams=4).bytes - alone.bytes == 30 * position
    weights = 6 * (6 * 512 * 512 + 2 * 512 * 2048) + 58_101 * 512
    assert alone.bytes == 2 * weights + 60 * position
    assert alone.flops == 2 * weights + 4 * 6 * 512 * 60
