"""Ranges of int8 vectors: what a file of them must hold, and where a model takes them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.engine import load_engine
from penstock.engine.errors import CheckpointError, UnsupportedCheckpoint
from penstock.engine.int8_ranges import read_int8_ranges
from tests.engine.helpers import save_encoder
from tests.engine.rerankers import save_reranker


@pytest.mark.parametrize(
    ("ranges", "why"),
    [
        (np.zeros((2, 3)), r"floats \[2, 4\].*Found: float64 \[2, 3\]"),
        (np.zeros((2, 4), np.int32), "Found: int32"),
        (np.array([[0.0] * 4, [np.inf] * 4]), "finite"),
        (np.array([[-3e38] * 4, [3e38] * 4], np.float32), "finite"),
        (np.array([[0.0] * 4, [-1.0] * 4]), "least value first"),
        (np.array([{}] * 4, dtype=object), "cannot be read"),
    ],
)
def test_other_arrays_are_refused(tmp_path: Path, ranges: Any, why: str) -> None:
    np.save(tmp_path / "ranges.npy", ranges)
    with pytest.raises(CheckpointError, match=why):
        read_int8_ranges(tmp_path / "ranges.npy", 4)


LARGE = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 10000000000000), }".ljust(117) + b"\n"


@pytest.mark.parametrize("content", [None, b"", b"text", b"\x93NUMPY\x01\x00\x76\x00" + LARGE], ids=str)
def test_other_files_are_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "ranges.npy").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"ranges\.npy: .*cannot be read"):
        read_int8_ranges(tmp_path / "ranges.npy", 4)


@pytest.mark.parametrize("engine", ["packed", "padded"])
def test_a_model_has_the_ranges_that_it_is_loaded_with(tmp_path: Path, engine: str) -> None:
    save_encoder(tmp_path, "bert")
    np.save(tmp_path / "ranges.npy", np.array([[-1.0] * 48, [1.0] * 48]))
    options: dict[str, Any] = {"device": "cpu", "dtype": "float32", "engine": engine}
    plain = load_engine(str(tmp_path), **options).info
    loaded = load_engine(str(tmp_path), int8_ranges=str(tmp_path / "ranges.npy"), **options).info
    assert plain.int8_ranges is None
    assert loaded.int8_ranges is not None
    assert plain.revision == loaded.revision  # of float32 vectors, which the cache keeps


@pytest.mark.slow
def test_a_model_without_vectors_takes_none(tmp_path: Path) -> None:
    save_reranker(tmp_path)
    np.save(tmp_path / "ranges.npy", np.array([[-1.0] * 48, [1.0] * 48]))
    with pytest.raises(UnsupportedCheckpoint, match="models that embed"):
        load_engine(str(tmp_path / "saved"), int8_ranges=str(tmp_path / "ranges.npy"), device="cpu")
