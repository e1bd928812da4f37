"""`penstock calibrate` measures, keeps, shows and draws batch times."""

import signal
import sys
from pathlib import Path

import pytest

from penstock.cache import CostKey
from penstock.engine import BatchOutput, NullEngine, PackedBatch
from penstock.ops.cli.planning.calibrate_screen import law, show_costs
from penstock.scheduler import CostTable, PackedCost, PaddedCost
from penstock.scheduler.costs.table import Sample
from penstock.worker import process
from penstock.worker.batching.startup_costs import MeasuredCosts
from penstock.worker.settings import WorkerSettings
from tests.engine.helpers import save_encoder
from tests.ops.command_line import penstock


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "tiny-bert"
    save_encoder(directory, "bert")
    return directory


def test_help_has_the_choices_of_an_engine_and_nothing_of_kafka() -> None:
    text = penstock("calibrate", "--help")[1]
    assert "(auto, packed, padded)" in text
    assert "--bootstrap-servers" not in text


@pytest.mark.slow
def test_it_measures_keeps_shows_and_draws(bert: Path, tmp_path: Path) -> None:
    model, path, plot = (
        ("--model", str(bert), "--dtype", "float32"),
        tmp_path / "kept" / "costs",
        tmp_path / "costs.png",
    )
    where = ("--cost-path", str(path), "--max-batch-tokens", "128", "--max-batch-sequences", "16", "--device", "cpu")
    code, text = penstock("calibrate", *model, *where, "--show")
    assert code == 1
    assert "has no table for this: no table of this model. To measure one, repeat the command without --show." in text

    code, text = penstock("calibrate", *model, *where, "--plot", str(plot))
    assert code == 0, text
    assert "tiny-bert, float32 on " in text
    assert f"kept in {path}" in text
    assert "A batch takes " in text
    assert "full, equal" in text
    assert "On 10 other batches its error is " in text
    assert plot.read_bytes().startswith(b"\x89PNG")

    code, shown = penstock("calibrate", *model, *where, "--show")
    assert code == 0, shown
    assert shown == text.partition(" Drawn:")[0]

    code, text = penstock("calibrate", *model, *where, "--show", "--engine", "padded")
    assert code == 1
    assert "there is one for runtime penstock" in text


@pytest.mark.slow
def test_the_padded_engines_times_are_its_own(bert: Path, tmp_path: Path) -> None:
    few = ("--max-batch-tokens", "64", "--max-batch-sequences", "4", "--device", "cpu")
    where = ("--cost-path", str(tmp_path / "costs"), "--engine", "padded")
    code, text = penstock("calibrate", "--model", str(bert), *where, *few)
    assert code == 0, text
    assert "a padded token" in text
    assert " 2 sequences " in text


@pytest.mark.slow
def test_a_file_that_cannot_be_used_is_said_and_does_not_hide_the_figures(bert: Path, tmp_path: Path) -> None:
    path = tmp_path / "costs"
    path.write_bytes(b"not a database" * 1000)
    few = ("--max-batch-tokens", "16", "--max-batch-sequences", "2", "--device", "cpu")
    code, text = penstock("calibrate", "--model", str(bert), "--cost-path", str(path), *few)
    assert code == 1
    assert "cost_tables_unusable" in text
    assert "A batch takes " in text
    assert "kept in" not in text


def test_a_plot_without_matplotlib_is_refused_before_anything_is_measured(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, text = penstock("calibrate", "--model", str(bert), "--plot", str(tmp_path / "costs.png"))
    assert code == 1
    assert "matplotlib, which is not installed: pip install 'penstock[bench]'" in text


def test_a_plot_into_a_directory_that_is_not_there_is_refused_before_anything_is_measured(
    bert: Path, tmp_path: Path
) -> None:
    code, text = penstock("calibrate", "--model", str(bert), "--plot", str(tmp_path / "none" / "costs.png"))
    assert code == 1
    assert "there is no directory" in text
    assert "measured" not in text


class CutShort(NullEngine):
    """Ctrl-C, in the midst of a batch."""

    went_on = False

    def run(self, batch: PackedBatch) -> BatchOutput:
        signal.raise_signal(signal.SIGINT)
        self.went_on = True
        return super().run(batch)


def test_ctrl_c_ends_the_timings_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, path = CutShort(4), tmp_path / "costs.sqlite"
    monkeypatch.setattr(process, "load", lambda settings: engine)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    code, _ = penstock("calibrate", "--model", str(tmp_path), "--cost-path", str(path))
    assert code == 130
    assert not engine.went_on
    with pytest.raises(KeyboardInterrupt):
        process.run_worker(WorkerSettings.model_validate({"model": str(tmp_path), "cost_path": path}))
    assert not engine.went_on


def test_a_model_that_is_not_there_is_a_sentence() -> None:
    code, text = penstock("calibrate", "--model", "./nowhere")
    assert code == 1
    assert "'./nowhere' is not a directory" in text


def test_the_law_is_in_units_that_can_be_read() -> None:
    packed = CostTable(PackedCost(2e-3, 1.5e-3, 55.12e-6, 12.3e-9), (1.0, 9.0), (1.0,), ((0.9,), (1.25,)))
    expected = "A batch takes 1.5 ms + 55.1 µs a token + 12.3 ns a length squared, at least 2 ms; times 0.90 to 1.25."
    assert law(packed) == expected
    assert "µs a padded token" in law(CostTable(PaddedCost(2e-3, 1.5e-3, 55.12e-6, 12.3e-9)))


def test_the_screen_has_a_place_for_each_timing(capsys: pytest.CaptureFixture[str]) -> None:
    samples = (
        Sample(8, 64, 8, 1, 0.001),
        Sample(64, 4096, 64, 1, 0.01),
        Sample(40, 300, 8, 8, 0.005),
        Sample(1000, 60_000, 64, 30, 0.123),
        Sample(64, 512, 8, 8, 0.006),
    )
    table = CostTable(PackedCost(0.0, 0.0, 1.25e-4, 0.0), samples=samples)
    key = CostKey(
        "AMD EPYC, 2 cores", "minilm", "0123456789abcdef0123", "bfloat16", "penstock 0.1.0, torch 2.11.0, packed"
    )
    show_costs(key, MeasuredCosts(table, (), 1.75e9, 4.2, 256, 1024), Path("/kept/here"))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["longest", "8", "64"] in lines
    assert ["1", "sequence", "1.00", "+0%", "10.0", "-20%"] in lines
    assert ["40", "tokens", "5.00", "+0%"] in lines
    assert ["1,000", "tokens", "123", "+2%"] in lines
    assert ["full,", "equal", "6.00", "+33%"] in lines
    assert ["No", "time", "was", "left", "to", "check", "it", "on", "other", "batches."] in lines
