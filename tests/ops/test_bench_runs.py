"""Kept runs: where they lie, which of them count, and the tables that are made of them."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from penstock.ops.bench.common.markdown import table
from penstock.ops.bench.common.measures import At, From, Suite
from penstock.ops.bench.common.runs import RESULTS, Run, begin, current_runs, keep, kept_runs, machines
from penstock.ops.bench.common.suite import named
from penstock.ops.bench.common.tables import NONE_KEPT, Grid, Table, caption, each
from penstock.ops.bench.common.verdicts import Spread, Target, spread, targets
from penstock.ops.bench.gpu.gpu_tables import SHAPES
from penstock.ops.bench.suites import SUITES
from penstock.ops.figures import tables as figures
from penstock.ops.figures.model_families import FAMILY_ROWS, model_families

MACHINE: dict[str, Any] = {"cpu": "AMD EPYC", "cores_used": [0, 1], "versions": {"torch": "2.15"}, "commit": "a" * 40}


def kept(root: Path, started: str, commit: str, **parts: Any) -> Path:
    header = {**begin("cpu", MACHINE, commit=commit), "started": started}
    return keep({**header, "parts": parts}, root)


def test_a_run_lies_under_suite_machine_time_and_commit_with_its_header(tmp_path: Path) -> None:
    path = keep({**begin("cpu", MACHINE), "started": "2026-01-02T03:04:05+00:00", "parts": {}}, tmp_path)
    assert path.relative_to(tmp_path) == Path("cpu/amd-epyc-2-cores/20260102T030405Z-aaaaaaa.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    assert (record["commit"], record["dirty"]) == ("a" * 40, False)
    assert len(record["load"]["before"]) == len(record["load"]["after"]) == 3
    assert record["load"]["cores"] >= 1
    assert record["machine"]["versions"] == {"torch": "2.15"}
    assert record["command"]
    assert record["seconds"] > 0


def test_the_command_of_a_run_names_no_folder_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["--parts", "a b", "--output", "/home/me/runs", "--log=/var/tmp/x.log", "--lengths", "20/45"]
    monkeypatch.setattr("sys.argv", ["/usr/bin/penstock", *given, "--url-prefix", "/v1", "--path=/v1"])
    assert begin("cpu", MACHINE)["command"].endswith(
        "--parts 'a b' --output runs --log=x.log --lengths 20/45 --url-prefix /v1 --path=/v1"
    )


def test_a_gpu_names_its_machine_and_a_changed_checkout_its_commit(tmp_path: Path) -> None:
    header = begin("gpu", {**MACHINE, "gpu": "NVIDIA H200"}, commit="abcdef0123+")
    path = keep({**header, "parts": {}}, tmp_path)
    assert path.parent == tmp_path / "gpu" / "nvidia-h200"
    assert path.stem.endswith("-abcdef0-dirty")
    (run,) = kept_runs("gpu", "nvidia-h200", tmp_path)
    assert run.commit == "abcdef0+"


def test_a_run_without_a_commit_says_so_and_stands_alone(tmp_path: Path) -> None:
    for day in (1, 2):
        header = {**begin("gpu", {**MACHINE, "commit": None}), "started": f"2026-01-0{day}T00:00:00+00:00"}
        assert keep({**header, "parts": {}}, tmp_path).stem.endswith("-unknown")
    assert len(current_runs("gpu", "amd-epyc-2-cores", tmp_path)) == 1


def test_all_runs_of_the_commit_measured_last_are_current_and_no_other(tmp_path: Path) -> None:
    for day, commit in ((3, "bbbbbbb1"), (1, "bbbbbbb1"), (2, "ccccccc1"), (4, "bbbbbbb1")):
        kept(tmp_path, f"2026-01-0{day}T00:00:00+00:00", commit)
    assert machines("cpu", tmp_path) == ["amd-epyc-2-cores"]
    assert [run.date[-1] for run in kept_runs("cpu", "amd-epyc-2-cores", tmp_path)] == ["1", "2", "3", "4"]
    assert [run.date[-1] for run in current_runs("cpu", "amd-epyc-2-cores", tmp_path)] == ["1", "3", "4"]


def test_what_is_not_finite_becomes_null(tmp_path: Path) -> None:
    path = kept(tmp_path, "2026-01-01T00:00:00+00:00", "abc", latency={"ms": [math.inf, 1.5], "x": (math.nan,)})
    assert json.loads(path.read_text(encoding="utf-8"))["parts"]["latency"] == {"ms": [None, 1.5], "x": [None]}


@pytest.mark.parametrize(
    ("values", "lower_is_better", "verdict"),
    [
        ((0.1, 0.75, 0.76), False, "met"),
        ((0.9, 0.85, 0.1), False, "met, and the aim"),
        ((0.9, 0.74, 0.7), False, "missed"),
        ((0.9, 0.9), False, "2 runs, no verdict"),
        ((0.9,), False, "1 run, no verdict"),
        ((0.75, 0.9, 0.1), True, "met"),
        ((0.8, 0.8, 0.1), True, "missed"),
    ],
)
def test_a_verdict_is_of_the_median_of_three_runs_at_least(
    values: tuple[float, ...], lower_is_better: bool, verdict: str
) -> None:
    target = Target("x", 0.75, 0.5 if lower_is_better else 0.85, lower_is_better)
    assert target.verdict(Spread(values)) == verdict


def test_a_figure_is_shown_with_its_range() -> None:
    assert str(Spread((496.4,))) == "496.4"
    assert str(Spread((3.0, 1.0, 2.0))) == "2.000 (1.000 to 3.000)"
    assert spread([None, 2.0]) == Spread((2.0,), 2)
    assert spread([None]) is None


def test_a_figure_of_fewer_runs_than_the_caption_says_so() -> None:
    assert str(Spread((35_591.0,), 3)) == "35,591 (1 run)"
    assert str(Spread((3.0, 1.0), 3)) == "2.000 (1.000 to 3.000, 2 runs)"
    assert str(Spread((3.0, 1.0), 2)) == "2.000 (1.000 to 3.000)"


@pytest.mark.parametrize("name", sorted(SUITES.keys() - {"pipeline"}))  # not all of its loads were kept
def test_every_target_is_of_a_measure_that_a_kept_run_has(name: str) -> None:
    runs = [run for machine in machines(name) for run in kept_runs(name, machine)]
    tables = [table for table in named(SUITES[name].tables).values() if isinstance(table, Table)]
    measured = {measure for table in tables for run in runs for measure in table.suite.measures(run.record)}
    assert {target.measure for target in targets(name)} <= measured


RECORD: dict[str, Any] = {
    "machine": {},
    "parts": {
        "loads": {"64": {"rate": 200.0, "p99_ms": 3.0}, "1": {"rate": 50.0, "p99_ms": None}},
        "echo": {"rate": 400.0},
        "rows": [{"kernel": "pool", "tokens": 4096, "us": [9.0, 7.0]}, {"kernel": "norm", "tokens": 64, "us": [5.0]}],
    },
}
SUITE = Suite(
    "cpu",
    (
        At("loads.*.rate", "* a record, req/s"),
        At("loads.*.p99_ms", "* a record, p99, ms"),
        At("echo.rate", "echo, req/s"),
        At("missing.*.rate", "missing, *, req/s"),
        At("rows.[kernel,tokens].us", "*, * tokens, µs", min, (str, "{:,}".format)),
        From("*, share of the echo", ("*, req/s", "echo, req/s")),
        lambda record: {"parts": float(len(record["parts"]))},
    ),
)


def test_figures_have_names_by_where_they_lie_and_what_they_are_made_of() -> None:
    assert SUITE.measures(RECORD) == {
        "64 a record, req/s": 200.0,
        "1 a record, req/s": 50.0,
        "64 a record, p99, ms": 3.0,
        "echo, req/s": 400.0,
        "pool, 4,096 tokens, µs": 7.0,
        "norm, 64 tokens, µs": 5.0,
        "64 a record, share of the echo": 0.5,
        "1 a record, share of the echo": 0.125,
        "echo, share of the echo": 1.0,
        "parts": 3.0,
    }


def test_a_declared_row_is_repeated_left_out_or_has_a_text_by_what_was_measured() -> None:
    grid = Grid(
        ["work", "req/s", "p99, ms"],
        [
            ["* sequences", "{* a record, req/s}", "{* a record, p99, ms|never answered}"],
            ["* beside the echo", "{* a record, req/s}", "{echo, req/s}"],
            *each(["pool", "norm", "sum"], "*", "{*, 64 tokens, µs}", "at {echo, req/s}"),
            ["missing", "{missing, a, req/s}", "{missing, b, req/s|not measured}"],
        ],
    )
    table = Table(SUITE, ["loads"], [grid, Grid(["x"], [["{missing, a, req/s}"]])])
    assert table.of_runs([Run(Path(), RECORD), Run(Path(), RECORD)]).splitlines()[2:] == [
        "| 64 sequences | 200.0 (200.0 to 200.0) | 3.000 (3.000 to 3.000) |",
        "| 1 sequences | 50.00 (50.00 to 50.00) | never answered |",
        "| 64 beside the echo | 200.0 (200.0 to 200.0) | 400.0 (400.0 to 400.0) |",
        "| 1 beside the echo | 50.00 (50.00 to 50.00) | 400.0 (400.0 to 400.0) |",
        "| pool |  | at 400.0 (400.0 to 400.0) |",
        "| norm | 5.000 (5.000 to 5.000) | at 400.0 (400.0 to 400.0) |",
        "| sum |  | at 400.0 (400.0 to 400.0) |",
    ]


def test_a_caption_names_the_runs_and_the_known_faults_of_their_parts(tmp_path: Path) -> None:
    for day in (1, 2):
        header = {**begin("cpu", MACHINE, commit="abcdef0"), "started": f"2026-01-0{day}T00:00:00+00:00"}
        keep({**header, "parts": {}, "notes": {"latency": ["one side alone"], "null": ["another"]}}, tmp_path)
    runs = current_runs("cpu", "amd-epyc-2-cores", tmp_path)
    assert caption(runs, ["latency"]) == (
        "*AMD EPYC, 2 cores, commit abcdef0, 2026-01-01 to 2026-01-02, medians (min to max) of 2 runs. "
        "Known faults: one side alone.*"
    )


def test_the_tables_of_the_repository_are_current() -> None:
    """Mended by `make figures`."""
    assert [str(path) for path in figures.stale_files()] == []


def test_every_table_can_be_made_and_none_is_empty() -> None:
    tables = {name: table() for name, table in figures.TABLES.items()}
    empty = {name for name, text in tables.items() if "|" not in text}
    not_kept = {name for name in empty if tables[name] == NONE_KEPT}
    assert not empty - {name for name in not_kept if name.startswith("pipeline-")}


def test_the_table_of_models_has_every_shape_once_with_the_figures_of_its_newest_runs(tmp_path: Path) -> None:
    assert sorted(shape for row in FAMILY_ROWS for shape in row.shapes) == sorted(SHAPES)
    for day, seconds in ((1, 1.0), (2, 0.5)):
        cosines = {who: {"min": 1 - seconds / 1e5, "mean": 1.0} for who in ("ours", "transformers SDPA")}
        load = {"low": 2, "high": 100, "requests": 100, "s": {"floor": 0.25, "ours": seconds}}
        parts = {
            "shape-bge-m3": {"result": {"one_request_ms": 1.0, "loads": [load]}},
            "shape-GTE-base": {"result": None},
            "cosines": {"result": {"shapes": {"bge-m3": {"between": 0.5, **cosines}}}},
        }
        header = {**begin("gpu", MACHINE, commit=f"abcdef{day}"), "started": f"2026-01-0{day}T00:00:00+00:00"}
        keep({**header, "parts": parts}, tmp_path)
    page = model_families(tmp_path)
    [row] = [line for line in page.splitlines() if "bge-m3:" in line and line.startswith("|")]
    assert "| bge-m3: 200.0 | bge-m3: 0.500 | bge-m3: 0.9999950 (0.9999950; 0.50) |" in row
    source = "*AMD EPYC, 2 cores, commit abcdef2, 2026-01-02, 1 run.*"
    assert page.endswith(f"\n\nbge-m3: {source}\n\nCosines: {source}")
    assert "GTE-base:" not in page


def test_a_table_replaces_what_stands_between_its_markers() -> None:
    text = "before\n<!-- figures:runs -->\nold\n<!-- /figures -->\nafter\n"
    renewed = figures.regenerated(text)
    assert renewed.startswith("before\n<!-- figures:runs -->\n\n| suite |")
    assert renewed.endswith("|\n\n<!-- /figures -->\nafter\n")
    assert figures.regenerated(renewed) == renewed


def test_a_marker_of_no_table_is_refused_with_the_names() -> None:
    with pytest.raises(figures.UnknownTable, match=r"no table 'teapot'.*cpu-headline"):
        figures.regenerated("<!-- figures:teapot -->\n<!-- /figures -->")


def test_every_file_in_the_results_is_of_its_place() -> None:
    for path in RESULTS.glob("*/*/*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        assert record["suite"] == path.parent.parent.name
        assert {"command", "started", "commit", "dirty", "load", "machine", "parts"} <= record.keys()
        assert not re.search(r"(^|[\s='\"])/[^\s'\"/]+/", record["command"] or ""), (
            f"{path} names a folder of a machine"
        )


def test_figures_stand_to_the_right_and_words_to_the_left() -> None:
    rows: list[list[Any]] = [["a", 1.5, "FastStream: 3", "≥ 2"], ["b", "2.0 (1 to 3)", "none", ""]]
    assert table(["work", "ours", "beside", "must"], rows).splitlines()[1] == "| --- | ---: | --- | ---: |"
