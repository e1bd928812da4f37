"""A worker's initial costs: measured once, then loaded; measured again if the kept table does not apply."""

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.cache import CostTables
from penstock.engine import BatchOutput, NullEngine, PackedBatch
from penstock.scheduler import CorruptTable, LearnedCost
from penstock.worker.batching.startup_costs import MeasuredCosts, cost_for, cost_key, kept_costs
from penstock.worker.resolved_settings import default_cost_path

MODEL = "some/null"
CAPS: dict[str, Any] = {"max_sequences": 64, "max_tokens": 512}


class Engine(NullEngine):
    """Takes, as it says, 1 ms a batch and 10 us a token; counts its batches."""

    def __init__(self, *, s_per_token: float = 1e-5, **info: Any) -> None:
        super().__init__(4, max_tokens=64)
        self._info = replace(self._info, **info)
        self.s_per_token = s_per_token
        self.num_batches = 0

    def run(self, batch: PackedBatch) -> BatchOutput:
        self.num_batches += 1
        tokens = len(batch.options) * batch.max_seqlen if self.info.padded else len(batch.token_ids)
        return BatchOutput(super().run(batch).rows, 0.001 + self.s_per_token * tokens)


async def start(
    path: Path | None, engine: Engine | None = None, model: str = MODEL, **caps: int
) -> tuple[Engine, LearnedCost, list[Any]]:
    """The start of a worker: its engine, its cost model, and its log events."""
    engine = engine or Engine()
    with capture_logs() as logs:
        cost = await cost_for(engine, path, model=model, **{**CAPS, **caps})
    return engine, cost, logs


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kept table."""
    path = tmp_path_factory.mktemp("measured") / "costs"
    asyncio.run(start(path))
    return path


@pytest.fixture
def kept(measured: Path, tmp_path: Path) -> Path:
    """A copy of it, which a test may change."""
    return Path(shutil.copy(measured, tmp_path))


async def test_costs_are_measured_once_and_then_loaded(tmp_path: Path) -> None:
    path = tmp_path / "penstock" / "costs.sqlite"
    first, measured, logs = await start(path)
    assert [log["event"] for log in logs] == ["cost_table_measured"]
    assert logs[0]["reason"] == "no table of this model"
    assert logs[0]["error_p95"] < 0.01
    assert float(measured.seconds(100, 100 * 20, 20, 5)) == pytest.approx(0.002, rel=0.05)
    second, loaded, logs = await start(path)
    assert [log["event"] for log in logs] == ["cost_table_loaded"]
    assert loaded.table == measured.table
    assert second.num_batches < first.num_batches / 3  # it only warms up


async def test_an_engine_that_pads_is_priced_by_what_it_pads(tmp_path: Path) -> None:
    _, cost, _ = await start(tmp_path / "costs", Engine(padded=True))
    assert cost.padded
    assert float(cost.seconds(60, 1000, 50, 10)) == pytest.approx(0.006, rel=0.05)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"device": "NVIDIA H200"}, "there is one for device "),
        ({"revision": "null-5"}, "there is one for revision null-4"),
        ({"dtype": "bfloat16"}, "there is one for dtype float32"),
        ({"padded": True}, "there is one for runtime "),
    ],
)
async def test_a_table_of_something_else_is_not_used(kept: Path, change: dict[str, Any], reason: str) -> None:
    _, _, logs = await start(kept, Engine(**change))
    assert [log["event"] for log in logs] == ["cost_table_measured"]
    assert logs[0]["reason"].startswith(reason)
    for engine in (Engine(), Engine(**change)):  # both are kept
        _, _, logs = await start(kept, engine)
        assert [log["event"] for log in logs] == ["cost_table_loaded"]


async def test_another_name_of_the_same_model_shares_its_table_and_another_model_does_not(kept: Path) -> None:
    _, _, logs = await start(kept, Engine(name="served-as-this"))
    assert [log["event"] for log in logs] == ["cost_table_loaded"]
    _, _, logs = await start(kept, model="some/other")
    assert logs[0]["reason"] == "no table of this model"


async def test_a_start_notes_the_served_name(kept: Path) -> None:
    assert await CostTables(kept).served_names() == {"null-4": {"null"}}
    await start(kept, Engine(name="served-as-this"))
    assert await CostTables(kept).served_names() == {"null-4": {"null", "served-as-this"}}


@pytest.mark.parametrize("larger", [{"max_tokens": 1025}, {"max_sequences": 129}])
async def test_a_table_of_much_smaller_batches_is_measured_anew(kept: Path, larger: dict[str, Any]) -> None:
    _, _, logs = await start(kept, max_tokens=1024, max_sequences=128)
    assert [log["event"] for log in logs] == ["cost_table_loaded"]
    _, _, logs = await start(kept, **larger)
    assert [log["event"] for log in logs] == ["cost_table_measured"]
    assert logs[0]["reason"] == "there is one for batches of 64 sequences and 512 tokens at most"
    for caps in (larger, CAPS):  # the larger one serves both
        _, _, logs = await start(kept, **caps)
        assert [log["event"] for log in logs] == ["cost_table_loaded"]


async def test_a_table_is_kept_where_there_was_no_time_to_reach_the_caps(tmp_path: Path) -> None:
    path = tmp_path / "costs"
    for event in ("cost_table_measured", "cost_table_loaded"):
        with capture_logs() as logs:
            cost = await cost_for(Engine(), path, model=MODEL, **CAPS, budget_s=0.0)
        assert [log["event"] for log in logs] == [event]
        assert max(sample.tokens for sample in cost.table.samples) < 256


async def test_a_table_of_another_version_is_not_used(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = cost_key(Engine().info, MODEL).runtime
    monkeypatch.setattr("penstock.worker.batching.startup_costs.version", lambda package: "99.0")
    _, _, logs = await start(kept)
    assert logs[0]["reason"] == f"there is one for runtime {runtime}"


def spoil_factor(data: dict[str, Any]) -> None:
    data["table"]["factors"][0][0] = -1


def spoil_keys(data: dict[str, Any]) -> None:
    del data["table"]["sizes"]


def spoil_checks(data: dict[str, Any]) -> None:
    data["checks"] = [["many"]]


def spoil_time(data: dict[str, Any]) -> None:
    data["measured_at"] = "yesterday"


def spoil_law(data: dict[str, Any]) -> None:
    """Nothing costs anything."""
    data["table"].update(floor_s=0.0, alpha_s=0.0, beta_s=0.0, gamma_s=0.0)


def spoil_floor(data: dict[str, Any]) -> None:
    """Nothing can ever be in time."""
    data["table"]["floor_s"] = 1e17


def spoil_scale(data: dict[str, Any]) -> None:
    data["table"]["factors"] = [[factor * 21 for factor in row] for row in data["table"]["factors"]]


def spoil_samples(data: dict[str, Any]) -> None:
    data["table"]["samples"] = []


def spoil_caps(data: dict[str, Any]) -> None:
    data["max_tokens"] = 0


def spoil_all(data: dict[str, Any]) -> None:
    data.clear()


@pytest.mark.parametrize(
    "spoil",
    [
        spoil_factor,
        spoil_keys,
        spoil_checks,
        spoil_time,
        spoil_law,
        spoil_floor,
        spoil_scale,
        spoil_samples,
        spoil_caps,
        spoil_all,
    ],
)
async def test_a_table_that_cannot_be_true_is_one_warning_and_measured_again(
    kept: Path, spoil: Callable[[dict[str, Any]], None]
) -> None:
    with sqlite3.connect(kept) as db:
        ((value,),) = db.execute("SELECT value FROM cost_table")
        data = json.loads(value)
        spoil(data)
        db.execute("UPDATE cost_table SET value = ?", (json.dumps(data),))
    db.close()
    _, _, logs = await start(kept)
    assert [(log["event"], log["log_level"]) for log in logs] == [
        ("cost_table_corrupt", "warning"),
        ("cost_table_measured", "info"),
    ]
    _, _, logs = await start(kept)
    assert [log["event"] for log in logs] == ["cost_table_loaded"]


async def test_a_file_of_something_else_is_one_warning_and_the_worker_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "costs"
    path.write_bytes(b"not a database" * 1000)
    _, cost, logs = await start(path)
    assert [log["event"] for log in logs] == ["cost_tables_unusable", "cost_table_measured"]
    assert float(cost.seconds(100, 2000, 20, 5)) == pytest.approx(0.002, rel=0.05)


async def test_a_place_that_cannot_be_written_is_one_warning_and_the_worker_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    _, cost, logs = await start(tmp_path / "file" / "costs")
    assert [log["event"] for log in logs] == ["cost_table_measured", "cost_tables_unusable"]
    assert not cost.padded


async def test_nothing_is_kept_without_a_file() -> None:
    _, _, logs = await start(None)
    assert [log["event"] for log in logs] == ["cost_table_measured"]


async def test_an_engine_that_takes_no_time_has_a_cost_too() -> None:
    cost = await cost_for(NullEngine(4), None, model=MODEL, **CAPS)
    assert 0 < float(cost.seconds(100, 1000, 20, 5)) < 1e-6


async def test_timings_that_are_no_times_are_left_out(tmp_path: Path) -> None:
    class Broken(Engine):
        def run(self, batch: PackedBatch) -> BatchOutput:
            output = super().run(batch)
            return BatchOutput(output.rows, float("nan")) if batch.max_seqlen > 30 else output

    _, cost, _ = await start(tmp_path / "costs", Broken())
    assert float(cost.seconds(100, 2000, 20, 5)) == pytest.approx(0.002, rel=0.05)
    _, _, logs = await start(tmp_path / "costs", Broken())
    assert [log["event"] for log in logs] == ["cost_table_loaded"]


async def test_what_is_kept_is_what_was_measured(tmp_path: Path) -> None:
    engine, cost, _ = await start(tmp_path / "costs")
    kept = await kept_costs(CostTables(tmp_path / "costs"), cost_key(engine.info, MODEL))
    assert kept is not None
    assert kept.table == cost.table
    assert len(kept.table.samples) > 15
    assert len(kept.checks) == 10
    assert MeasuredCosts.from_dict(json.loads(json.dumps(kept.to_dict()))) == kept
    with pytest.raises(CorruptTable):
        MeasuredCosts.from_dict({})


def test_tables_are_kept_in_the_users_cache_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cost_path() == tmp_path / "penstock" / "costs.sqlite"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/user")
    assert default_cost_path() == Path("/home/user/.cache/penstock/costs.sqlite")


def test_a_key_names_what_computes() -> None:
    key = cost_key(Engine().info, MODEL)
    assert " core" in key.device
    assert key.runtime.startswith("penstock ")
    assert ", torch " in key.runtime
    assert key.runtime.endswith(", packed")
    padded = cost_key(Engine(padded=True, device="NVIDIA H200").info, MODEL)
    assert padded.device == "NVIDIA H200"
    assert ", transformers " in padded.runtime
    assert padded.runtime.endswith(", padded")
