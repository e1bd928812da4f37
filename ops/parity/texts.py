"""The texts of a file, for a comparison."""

from pathlib import Path

from penstock.producer.errors import PenstockError
from penstock.producer.files import TableError, open_reader
from penstock.producer.row_inputs import RowInputs
from penstock.producer.wire.messages import Text


def read_texts(path: Path, column: str) -> list[str]:
    """The texts of a CSV, JSONL or Parquet file, or the lines of another. Raises TableError."""
    if path.suffix.lower() not in (".csv", ".jsonl", ".parquet"):
        try:
            return path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise TableError(f"{path} cannot be read as lines of UTF-8: {error}.") from error
    with open_reader(path, column) as reader:
        return [_text(text, block.place(row)) for block in reader for row, text in enumerate(block.texts)]


def _text(text: Text | RowInputs | PenstockError, place: str) -> str:
    """The text of a row. An empty one is compared too, so the error that stands for it is undone."""
    if isinstance(text, PenstockError):
        if text.code == "empty":
            return ""
        raise TableError(f"{place}: {text.message}")
    if not isinstance(text, str):
        raise TableError(f"{place}: a pair. Give one column of texts; pairs are made of neighbours.")
    return text
