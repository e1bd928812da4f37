"""The default served name is the same in the worker and in `penstock check`."""

from pathlib import Path

import pytest

from penstock.engine import load_engine
from penstock.ops.cli.checks.kafka_probe import probe_kafka
from penstock.ops.cli.checks.probes import CheckSettings
from penstock.ops.kafka import MockBroker
from penstock.producer.wire.topics import request_topic
from tests.engine.helpers import save_encoder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT in a directory called `tiny`, and a link to it beside its parent."""
    directory = tmp_path_factory.mktemp("models") / "org" / "tiny"
    save_encoder(directory, "bert")
    (directory.parents[1] / "link").symlink_to(directory)
    return directory


@pytest.mark.parametrize("model", ["hub/tiny", "org/tiny", "./org/tiny/", "org/../org/tiny", "link", "."])
async def test_it_is_the_last_part_of_the_path_or_id(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """Also of a link, which is often there to give a model its name."""
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(checkpoint))
    monkeypatch.chdir(checkpoint if model == "." else checkpoint.parents[1])
    name = "link" if model == "link" else "tiny"
    assert load_engine(model, dtype="float32", device="cpu").info.name == name
    with MockBroker() as broker:
        settings = CheckSettings(model=model, bootstrap_servers=broker.bootstrap_servers)  # type: ignore[call-arg]  # the others have defaults
        found = await probe_kafka(settings)
    [line] = [finding.found for finding in found if finding.what == "Request topic"]
    assert line.startswith(f"{request_topic(name)} ")
