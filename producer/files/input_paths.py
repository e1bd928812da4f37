"""Input files of a job: files, the tables in directories, and what patterns match."""

import glob
from collections.abc import Iterable, Iterator
from pathlib import Path

from penstock.producer.files.row_blocks import TableError
from penstock.producer.files.standard_streams import STANDARD
from penstock.producer.files.table_reader import EXTENSIONS

_HIDDEN = (".", "_")  # beginnings of names that Spark and others give to files that are no tables


def input_paths(given: Iterable[Path], output: Path) -> list[Path]:
    """The files that `given` names, in its order; those of a directory or a pattern are in order of their paths.

    The output, and parts of bulk jobs, are left out of directories and patterns.

    Raises:
        TableError: a directory or a pattern has no table.
    """
    paths: list[Path] = []
    for path in given:
        if path == STANDARD or path.is_file():
            paths.append(path)
            continue
        is_pattern = not path.is_dir() and glob.has_magic(str(path))
        if not is_pattern and not path.is_dir():
            paths.append(path)  # the reader says that it does not exist
            continue
        candidates = map(Path, glob.iglob(str(path), recursive=True)) if is_pattern else path.rglob("*")
        found = sorted(_tables(candidates, output.resolve()))
        if not found:
            raise TableError(f"{path} {'matches' if is_pattern else 'holds'} no table ({', '.join(EXTENSIONS)}).")
        paths += found
    return paths


def _tables(candidates: Iterable[Path], output: Path) -> Iterator[Path]:
    """The tables among the candidates, without `output`, a resolved path, however they are spelled."""
    for path in candidates:
        is_hidden = path.name.startswith(_HIDDEN) or path.parent.name.endswith(".parts")
        if path.suffix.lower() in EXTENSIONS and not is_hidden and path.is_file() and path.resolve() != output:
            yield path
