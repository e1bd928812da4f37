"""Cost tables of a model are found by its served name, or by its checkpoint's revision."""

import asyncio
from pathlib import Path

import pytest

from penstock.cache import CostKey, CostTables
from penstock.engine.model.checkpoint import revision_of
from penstock.scheduler import CostTable, PackedCost
from penstock.scheduler.costs.table import Sample
from penstock.worker.batching.kept_tables import KeptTables, tables_of
from penstock.worker.batching.startup_costs import MeasuredCosts
from penstock.worker.resolved_settings import default_cost_path
from tests.engine.helpers import save_encoder
from tests.ops.command_line import penstock
from tests.ops.conftest import no_settings_from_outside

__all__ = ["no_settings_from_outside"]  # a fixture that is used by being here

LAW = CostTable(PackedCost(1.0, 0.0, 0.0, 0.0), samples=(Sample.of([8, 8], 1.0),))
LOAD = ("--rate", "1", "--lengths", "5/9")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def keep(revision: str, *names: str, path: Path | None = None, measured_at: float = 1.7e9, **changes: str) -> CostKey:
    """Keep a table of a checkpoint in a directory `model`."""
    fields = {"device": "a processor", "model": "model", "dtype": "float32", "runtime": "packed", **changes}
    key = CostKey(**fields, revision=revision)
    tables = CostTables(path or default_cost_path())
    assert asyncio.run(tables.put(key, MeasuredCosts(LAW, (), measured_at, 1.0, 4, 1024).to_dict()))
    for name in names:
        asyncio.run(tables.add_served_name(revision, name))
    return key


def found(model: str, path: Path | None = None) -> KeptTables:
    return asyncio.run(tables_of(model, path))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("own") / "model"
    save_encoder(directory, "bert")
    return directory


def test_a_served_name_finds_the_table() -> None:
    key = keep("r1", "mini")
    keep("r2", "other")
    assert list(found("mini").costs) == [key]
    assert found("mini").note == ""


def test_a_name_of_several_revisions_names_each() -> None:
    keys = [keep("r1", "mini"), keep("r2", "mini", measured_at=1.8e9)]
    mini = found("mini")
    assert list(mini.costs) == keys
    assert "2 revisions have the name 'mini': r1 (measured 2023-11-1" in mini.note
    assert "r2 (measured 2027-01-1" in mini.note


def test_a_path_finds_the_tables_of_its_revision_alone(checkpoint: Path) -> None:
    for number in range(3):
        keep(f"r{number}", "model")
    missing = found(str(checkpoint))
    revision = revision_of(checkpoint)
    assert not missing.costs
    assert (
        f"has no cost table of '{checkpoint}', whose revision is {revision[:16]}. It has tables of model."
        in missing.note
    )
    assert missing.note.endswith(f" penstock calibrate --model {checkpoint} measures one.")
    own = keep(revision)
    assert list(found(str(checkpoint)).costs) == [own]
    assert found(str(checkpoint)).note == ""


def test_the_head_of_the_workers_settings_is_part_of_the_revision(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = tmp_path / "head"
    head.write_bytes(b"of a head")
    own = keep(revision_of(checkpoint, (head,)))
    keep(revision_of(checkpoint))
    monkeypatch.setenv("PENSTOCK_HEAD", str(head))
    assert list(found(str(checkpoint)).costs) == [own]


def test_the_file_is_that_of_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = keep("r1", "mini", path=tmp_path / "own.sqlite")
    assert not found("mini").costs
    monkeypatch.setenv("PENSTOCK_COST_PATH", str(tmp_path / "own.sqlite"))
    assert list(found("mini").costs) == [key]


def test_a_later_version_replaces_the_tables_of_earlier_ones() -> None:
    later = keep("r1", "mini", runtime="penstock 2", measured_at=1.8e9)
    keep("r1", "mini", runtime="penstock 1")
    half = keep("r1", "mini", dtype="bfloat16", measured_at=1.9e9)
    assert list(found("mini").costs) == [later, half]


def test_a_directory_that_is_missing_is_not_taken_for_another_of_its_name(tmp_path: Path) -> None:
    keep("r1", "model")
    missing = found(str(tmp_path / "modle" / "model"))
    assert not missing.costs
    assert f"There is no directory {tmp_path / 'modle' / 'model'}." in missing.note
    assert len(found("org/model").costs) == 1  # a Hugging Face id


def test_what_calibrate_keeps_is_found_by_name_and_by_path(checkpoint: Path) -> None:
    few = ("--max-batch-tokens", "16", "--max-batch-sequences", "2", "--device", "cpu")
    code, text = penstock("calibrate", "--model", str(checkpoint), "--served-name", "mini", *few)
    assert code == 0, text
    for model in ("mini", str(checkpoint)):
        code, text = penstock("capacity", "--model", model, *LOAD)
        assert code == 0, text
        assert f"revision {revision_of(checkpoint)[:16]}" in text


def test_several_revisions_are_shown_each(tmp_path: Path) -> None:
    keep("r1", "mini")
    keep("r2", "mini", measured_at=1.8e9)
    code, text = penstock("capacity", "--model", "mini", *LOAD)
    assert code == 0, text
    assert "2 revisions have the name 'mini'" in text
    assert "packed; revision r1" in text
    assert "packed; revision r2" in text
    (tmp_path / "in.csv").write_text("text\ncard\n")
    code, text = penstock(
        "classify", str(tmp_path / "in.csv"), str(tmp_path / "out.csv"), "--model", "mini", "--dry-run"
    )
    assert code == 0, text
    assert "2 revisions have the name 'mini'" in text
    assert "like a processor, float32, revision r1, at" in text
    assert "like a processor, float32, revision r2, at" in text
