"""The manual shows what its commands print over the kept logs."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.ops.cli.main import app
from tests.ops.logs.helpers import FLEET, HOST_A, HOST_B

MANUAL = Path(__file__).parents[3] / "ops" / "docs"
LEFT_OUT = "…"  # a line that stands for any others
TERMINAL = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
SHOWN = [
    (page.name, command, block)
    for page in sorted(MANUAL.glob("*.md"))
    for command, block in re.findall(
        r"^```\n\$ penstock (logs [^\n]+)\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S
    )
]


def printed(command: str) -> list[str]:
    result = CliRunner().invoke(app, shlex.split(command), env=TERMINAL, prog_name="penstock")
    assert result.exit_code == 0, result.output
    return [line.rstrip() for line in result.stdout.rstrip("\n").split("\n")]


def is_shown_by(block: list[str], lines: list[str]) -> bool:
    """Whether the lines are those of a block, of which `LEFT_OUT` stands for any number."""
    if not block:
        return not lines
    if block[0] == LEFT_OUT:
        return any(is_shown_by(block[1:], lines[start:]) for start in range(len(lines) + 1))
    return bool(lines) and block[0] == lines[0] and is_shown_by(block[1:], lines[1:])


def test_blocks_are_found() -> None:
    assert {page for page, _, _ in SHOWN} == {"logs.md", "operations.md"}
    assert len(SHOWN) >= 11


@pytest.mark.parametrize(("page", "command", "block"), SHOWN, ids=lambda text: text.split("\n")[0][:50])
def test_a_shown_output_is_that_of_the_kept_logs(
    page: str, command: str, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(FLEET, tmp_path / "worker.log")
    shutil.copy(HOST_A, tmp_path)
    shutil.copy(HOST_B, tmp_path)
    monkeypatch.chdir(tmp_path)
    lines, shown = printed(command), block.rstrip("\n").split("\n")
    assert is_shown_by(shown, lines), f"{page} does not show what is printed:\n" + "\n".join(lines)
