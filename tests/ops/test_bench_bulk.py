"""The benchmark of bulk jobs: its figures, and the worker that computes nothing."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from penstock.engine import PackedBatch, TaskOptions
from penstock.ops.bench.bulk.bulk_tables import SUITE
from penstock.ops.bench.bulk.echo_worker import EchoEngine, EchoTokenizer, marks_of
from penstock.ops.bench.bulk.input_tables import write_texts
from penstock.ops.bench.bulk.part_kills import is_kill_due
from penstock.ops.bench.common.verdicts import targets
from penstock.producer.wire.messages import Text

SHARE = {"of_texts": 0.9, "of_ids": 0.8, "by_processor_time": 0.95}
PARTS = {
    "share": {
        "engine_alone_rows_per_s": {"of_texts": 100.0, "of_ids": 110.0},
        "rows_per_s": {"embed": 90.0, "classify": 91.0},
        "share": {"embed": SHARE, "classify": SHARE},
    },
    "memory": {"rows": 10, "rows_per_s": 5.0, "peak_rss_bytes": 250_000_000, "cpu_us_per_row": 9.0},
    "kills": {"csv": {"rows_that_differ": 0}, "parquet": {"rows_that_differ": 3}},
}


@pytest.mark.parametrize("kind", ["bulk", "bulk-cpu"])
def test_every_target_is_measured(kind: str) -> None:
    assert {target.measure for target in targets(kind)} <= SUITE.measures({"parts": PARTS}).keys()


def test_a_run_of_one_part_has_its_figures_alone() -> None:
    found = SUITE.measures({"parts": {"memory": PARTS["memory"]}})
    assert found["nothing computed, largest memory of the job, MB"] == 250
    assert not any("share" in name for name in found)


def test_a_run_is_killed_once_it_has_finished_rows_of_its_own(tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.json"
    assert not is_kill_due(manifest, rows_before=0, at_s=0.0)
    manifest.write_text('{"report": {"rows": 2048}}')
    assert is_kill_due(manifest, rows_before=0, at_s=0.0)
    assert not is_kill_due(manifest, rows_before=2048, at_s=0.0)
    assert not is_kill_due(manifest, rows_before=0, at_s=float("inf"))


async def test_the_answer_of_the_echo_identifies_its_text() -> None:
    texts: list[Text] = ["one", "two", ("a", "pair")]
    encoded = await EchoTokenizer().encode_async(texts, truncate=False)
    batch = PackedBatch.of([sequence.ids for sequence in encoded], [TaskOptions("embed")] * len(texts))
    rows = EchoEngine(2).run(batch).rows
    assert np.array_equal(np.stack(rows), marks_of(texts))
    assert len({tuple(row.tolist()) for row in rows}) == len(texts)


def test_a_table_has_its_rows_in_order(tmp_path: Path) -> None:
    write_texts(tmp_path / "in.parquet", 70_000, 2, 3, None)
    table = pq.read_table(tmp_path / "in.parquet")
    assert table.column("id").to_pylist() == list(range(70_000))
    assert {text.count(" ") for text in table.column("text").to_pylist()} == {1, 2}
