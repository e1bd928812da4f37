"""The code of the guide `ops/docs/cells.md` runs, and prints what the guide says."""

import re
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[3] / "ops" / "docs" / "cells.md"


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.slow
def test_the_guides_code_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    code = "\n".join(blocks())
    exec(compile(code, str(GUIDE), "exec"), {})
    said = re.findall(r"^print\(.*\)  # (.*)$", code, re.MULTILINE)
    assert len(said) == 2
    assert capsys.readouterr().out.splitlines() == said


def test_the_first_cell_takes_20_lines_at_most() -> None:
    assert len([line for line in blocks()[0].splitlines() if line]) <= 20
