"""`--dtype auto-int8`: taken or not by what a model loses, which is measured once, and always with its reason."""

import sqlite3
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

import pytest
import structlog
import torch

import penstock.engine
from penstock.engine import Engine, precision_loss
from penstock.engine.device import is_bfloat16_fast
from penstock.engine.precision_loss import PrecisionLoss
from penstock.worker.model_settings import ModelSettings
from penstock.worker.process import load
from tests.engine.helpers import needs_vnni
from tests.parity_checkpoints import classifier, generator

Event = MutableMapping[str, Any]
AUTO = "bfloat16" if is_bfloat16_fast() else "float32"


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., tuple[Any, Event]]:
    """Loads a directory as a worker does; returns the model's facts and the event of the choice."""

    def start(directory: Path, **settings: Any) -> tuple[Any, Event]:
        given = {"model": str(directory), "dtype": "auto-int8", "device": "cpu", "cost_path": tmp_path / "costs"}
        with structlog.testing.capture_logs() as logs:
            info = load(ModelSettings.model_validate(given | settings)).info
        [event] = [event for event in logs if event["event"] in ("int8_taken", "int8_not_taken")]
        return info, event

    return start


@needs_vnni
@pytest.mark.slow
def test_a_model_that_loses_little_runs_in_int8_and_is_measured_once(
    tmp_path: Path, start: Callable[..., tuple[Any, Event]]
) -> None:
    classifier(tmp_path / "model")  # so narrow that the down products alone are in int8
    info, event = start(tmp_path / "model")
    assert (info.dtype, event["event"], event["measured"]) == ("int8", "int8_taken", "now")
    assert 0 < event["score"] < 0.02
    assert event["labels_changed"] == 0
    info, again = start(tmp_path / "model")
    assert (info.dtype, again["measured"]) == ("int8", "earlier")
    assert again == {**event, "measured": "earlier"}


@needs_vnni
@pytest.mark.slow
def test_a_model_that_loses_much_runs_as_auto_and_says_by_how_much(
    tmp_path: Path, start: Callable[..., tuple[Any, Event]], monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier(tmp_path / "model")
    monkeypatch.setattr(precision_loss, "_MOST_SCORE", 0.0)
    for measured in ("now", "earlier"):
        info, event = start(tmp_path / "model")
        assert (info.dtype, event["event"], event["measured"]) == (AUTO, "int8_not_taken", measured)
        assert event["reason"] == f"a score differs by {event['score']:.4f} from float32's, and may by 0.0"


@needs_vnni
@pytest.mark.slow
def test_another_revision_and_a_damaged_row_are_measured_again(
    tmp_path: Path, start: Callable[..., tuple[Any, Event]]
) -> None:
    for name in ("one", "other"):
        classifier(tmp_path / name / "model", id2label={0: name, 1: "b", 2: "c"})
        assert start(tmp_path / name / "model")[1]["measured"] == "now"
    with sqlite3.connect(tmp_path / "costs") as file:
        file.execute("UPDATE precision_loss SET value = '{\"cosine\": 1}'")
    file.close()
    assert start(tmp_path / "one" / "model")[1]["measured"] == "now"


@needs_vnni
@pytest.mark.slow
def test_a_reranker_is_measured_with_pairs(
    tmp_path: Path, start: Callable[..., tuple[Any, Event]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sigmoid may be 0 for each text alone, whatever the arithmetic."""
    classifier(tmp_path / "model", num_labels=1)
    with_types: list[bool] = []

    def spy(ours: Engine, exact: Engine, sequences: precision_loss.Sequences) -> PrecisionLoss:
        with_types.extend([types is not None and bool(types.any()) for _, types in sequences])
        return precision_loss.measure_loss(ours, exact, sequences)

    monkeypatch.setattr(penstock.engine, "measure_loss", spy)
    start(tmp_path / "model")
    assert sum(with_types) == len(with_types) / 2 > 20


@needs_vnni
@pytest.mark.slow
def test_a_loss_that_is_no_number_is_a_reason_and_no_error(
    tmp_path: Path, start: Callable[..., tuple[Any, Event]], monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier(tmp_path / "model")
    monkeypatch.setattr(penstock.engine, "measure_loss", lambda *_: PrecisionLoss(31, cosine=float("nan")))
    info, event = start(tmp_path / "model")
    assert (info.dtype, event["event"], event["measured"]) == (AUTO, "int8_not_taken", "now")
    assert "the least cosine to float32 is nan" in event["reason"]


@pytest.mark.slow
def test_what_cannot_be_in_int8_says_why_and_runs_as_auto(
    tmp_path: Path, start: Callable[..., tuple[Any, Event]], monkeypatch: pytest.MonkeyPatch
) -> None:
    generator(tmp_path / "generator")
    info, event = start(tmp_path / "generator")
    assert "generate" in info.tasks
    assert event["event"] == "int8_not_taken"
    assert "'int8' is not available for a model that generates" in event["reason"]
    classifier(tmp_path / "classifier")
    info, event = start(tmp_path / "classifier", engine="padded")
    assert "encoders that run packed" in event["reason"]
    assert info.dtype == AUTO
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    info, event = start(tmp_path / "classifier")
    assert "AVX-512 VNNI" in event["reason"]
    assert info.dtype == AUTO


@needs_vnni
@pytest.mark.slow
def test_without_a_tokenizer_there_is_nothing_to_measure_with(
    tmp_path: Path, start: Callable[..., tuple[Any, Event]]
) -> None:
    classifier(tmp_path)
    for file in tmp_path.glob("tokenizer*"):
        file.unlink()
    info, event = start(tmp_path)
    assert info.dtype == AUTO
    assert event["reason"] == "the model has no tokenizer to measure with"


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (PrecisionLoss(31, cosine=0.999, kept=0.97, score=0.02, labels_changed=0), ""),
        (PrecisionLoss(50, labels_changed=1), ""),
        (PrecisionLoss(31, cosine=0.99899), "the least cosine to float32 is 0.99899, and must be 0.999"),
        (PrecisionLoss(31, cosine=float("nan")), "the least cosine to float32 is nan, and must be 0.999"),
        (PrecisionLoss(31, cosine=1.0, kept=0.9), "90.0% of the nearest neighbours are those of float32"),
        (PrecisionLoss(31, score=0.021), "a score differs by 0.0210 from float32's, and may by 0.02"),
        (PrecisionLoss(49, score=0.0, labels_changed=1), "1 of 49 labels changed, and 2% may"),
    ],
)
def test_each_bound_is_told(loss: PrecisionLoss, says: str) -> None:
    assert says in loss.excess()
    assert bool(loss.excess()) == bool(says)
