"""Tables of WIRE.md, so that what is said about the wire format is said in one place."""

from importlib.resources import files
from typing import NamedTuple


class WireRow(NamedTuple):
    """One row of a table: the names in its first column, and the other cells."""

    names: tuple[str, ...]
    cells: tuple[str, ...]


def wire_table(section: str, first_column: str) -> list[WireRow]:
    """The rows of the tables of a section of WIRE.md whose first column has this title."""
    page = (files("penstock.producer.wire") / "WIRE.md").read_text(encoding="utf-8")
    lines = page.split(f"\n## {section}\n")[1].split("\n## ")[0].splitlines()
    rows, is_wanted = [], False
    for line in lines:
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not line.startswith("|"):
            is_wanted = False
        elif not line.startswith(("| `", "|-")):
            is_wanted = cells[0] == first_column
        elif is_wanted and line.startswith("| `"):
            rows.append(WireRow(_names(cells[0]), tuple(cells[1:])))
    return rows


def _names(cell: str) -> tuple[str, ...]:
    """`a.b`, `.c` -> a.b, a.c."""
    names = [name.strip(" `") for name in cell.split(",")]
    stem = names[0].rpartition(".")[0]
    return tuple(stem + name if name.startswith(".") else name for name in names)
