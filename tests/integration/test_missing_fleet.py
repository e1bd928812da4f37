"""A job for a model that no worker serves ends at once, and creates no topic."""

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.ops.cli.jobs import fleet_probe
from penstock.ops.cli.main import app
from penstock.ops.kafka import KafkaBroker
from tests.integration.conftest import StartWorker, Unique, open_admin


async def embed(kafka: KafkaBroker, model: str, folder: Path, *options: str) -> tuple[int, str]:
    """Exit code, and what the command says."""
    (folder / "in.csv").write_text("text\nhello\nworld\n")
    command = ["embed", "--model", model, "--bootstrap-servers", kafka.bootstrap_servers, "--overwrite", *options]
    command += [str(folder / "in.csv"), str(folder / "out.csv")]
    result = await asyncio.to_thread(CliRunner().invoke, app, command, prog_name="penstock", env={"NO_COLOR": "1"})
    return result.exit_code, result.stderr


async def topics(kafka: KafkaBroker) -> list[str]:
    async with open_admin(kafka) as admin:
        return list(await admin.list_topics())


async def test_a_job_needs_a_worker_unless_it_is_to_wait(
    kafka: KafkaBroker, start_worker: StartWorker, unique: Unique, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_probe, "_ANSWER_S", 60.0)  # however long the machine stands still
    model = unique("m")
    code, said = await embed(kafka, model, tmp_path)
    assert code == 2
    assert f"there is no topic penstock.requests.{model}.bulk." in said
    assert "--wait" in said
    assert not [topic for topic in await topics(kafka) if model in topic]

    worker = await start_worker(kafka, model="null", served_name=model).ready()
    code, said = await embed(kafka, model, tmp_path)
    assert code == 2
    assert "has no tokenizer here: send token ids." in said

    await worker.stop()
    code, said = await embed(kafka, model, tmp_path)
    assert code == 2
    assert f"the group penstock.{model} has no member." in said
    code, said = await embed(kafka, model, tmp_path, "--wait", "--timeout-s", "1")
    assert code == 1
    assert "Errors: expired 2" in said
