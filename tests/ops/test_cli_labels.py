"""`penstock classify --labels`: labels that no worker takes end the command before Kafka is asked."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.ops.cli.jobs.task_commands import ClassifySettings
from penstock.ops.cli.main import app

NO_KAFKA = "127.0.0.1:1"  # a client of it waits without end


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--labels", ""), "`labels` item 0 is empty"),
        (("--labels", "a,,b"), "`labels` item 1 is empty"),
        (("--labels", "a, a"), "`labels` item 1 equals one before it"),
        (("--labels", "a", "--template", "no place"), "with one {}, the label's place"),
        (("--template", "{}"), "`template` needs `labels`"),
        (("--multi-label",), "`multi_label` needs `labels`"),
    ],
)
def test_labels_at_fault_are_bad_usage(tmp_path: Path, options: tuple[str, ...], says: str) -> None:
    (tmp_path / "in.csv").write_text("text\nhello\n")
    paths = (str(tmp_path / "in.csv"), str(tmp_path / "out.csv"))
    command = ["classify", *paths, "--model", "m", "--bootstrap-servers", NO_KAFKA, *options]
    result = CliRunner().invoke(app, command, prog_name="penstock", env={"NO_COLOR": "1", "COLUMNS": "200"})
    assert result.exit_code == 2
    assert says in result.output
    assert ".." not in result.output
    assert not (tmp_path / "out.csv").exists()


def test_labels_are_told_apart_by_commas() -> None:
    settings = ClassifySettings(model="m", labels="billing, fraud ,other", top_k=2)  # type: ignore[call-arg]  # the others have defaults
    assert (settings.options.labels, settings.options.top_k) == (("billing", "fraud", "other"), 2)
