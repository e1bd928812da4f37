"""The table of constants in scheduler/ABLATION.md: every number of the scheduler, its value, and what chose it."""

import ast
import re
from importlib import import_module
from pathlib import Path

from penstock.scheduler import SchedulerSettings

ROOM = Path(__file__).parents[2] / "scheduler"
_ROW = re.compile(r"^\| ([a-z_.]+\.\w+) \| ([\d.,e+-]+) (.*?) ?\| (.+) \|$", re.MULTILINE)


def value(place: str) -> float:
    """The number at a place, in dots below penstock.scheduler."""
    module, _, name = place.rpartition(".")
    if module == "settings":
        return float(getattr(SchedulerSettings(0.0, 1, 1, None), name))
    return float(getattr(import_module(f"penstock.scheduler.{module}"), name))


def test_every_number_of_the_scheduler_is_in_the_table_with_its_value() -> None:
    """Those that a module assigns to an upper-case name."""
    table = (ROOM / "ABLATION.md").read_text(encoding="utf-8").split("| constant | value | chosen by |")[1]
    told = {place: number for place, number, _, _ in _ROW.findall(table)}
    assigned = {
        ".".join([*path.relative_to(ROOM).with_suffix("").parts, name.id])
        for path in ROOM.rglob("*.py")
        if path != ROOM / "cellular" / "arrays.py"  # positions of fields, which are not tuned
        for statement in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        for target in (statement.targets if isinstance(statement, ast.Assign) else [statement.target])
        for name in ast.walk(target)
        if isinstance(name, ast.Name) and name.id.isupper()
    }
    modules = {place: import_module(f"penstock.scheduler.{place.rpartition('.')[0]}") for place in assigned}
    numbers = {
        place for place, module in modules.items() if isinstance(getattr(module, place.rpartition(".")[2]), int | float)
    }
    assert numbers
    assert numbers - told.keys() == set()
    assert told == {place: f"{value(place):,g}" for place in told}
