"""Vectors of one byte a value, as sentence-transformers' `quantize_embeddings` makes them with given ranges."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.engine.errors import CheckpointError

_LEVELS = 255  # steps of a range


@dataclass(frozen=True, slots=True, eq=False)
class Int8Ranges:
    """The least and the greatest value of each place of a vector, among vectors of a sample. Others are clipped."""

    least: npt.NDArray[np.float32]  # [D]
    steps: npt.NDArray[np.float32]  # [D], each above 0
    digest: str  # of both: equal ones make equal bytes of equal vectors

    def quantised(self, vectors: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[Any]:
        """float32 [N, D] to `dtype` [N, D]: "uint8", from 0 for the least value, or "int8", which is 128 less."""
        levels: npt.NDArray[np.float32] = np.clip(np.floor((vectors - self.least) / self.steps), 0, _LEVELS)
        return levels.astype(np.uint8) if dtype == "uint8" else (levels - 128).astype(np.int8)


def read_int8_ranges(path: Path, dim: int) -> Int8Ranges:
    """The ranges [2, dim] in a file of numpy's. Raises CheckpointError."""
    try:
        ranges = np.load(path, mmap_mode="r", allow_pickle=False)  # no room for a shape that the file has no data of
    except (OSError, ValueError, EOFError) as error:
        raise CheckpointError(f"{path}: the ranges of int8 vectors cannot be read (a .npy file): {error}") from error
    if not isinstance(ranges, np.ndarray) or ranges.shape != (2, dim) or ranges.dtype.kind != "f":
        found = f"{ranges.dtype} {list(ranges.shape)}" if isinstance(ranges, np.ndarray) else "an archive"
        raise CheckpointError(
            f"{path}: ranges must be floats [2, {dim}], the least and the greatest values of vectors. Found: {found}"
        )
    with np.errstate(over="ignore"):
        ranges = ranges.astype(np.float32)
        least, greatest = ranges
        steps = (greatest - least) / _LEVELS
    if not np.isfinite([*ranges, steps]).all() or (least > greatest).any():
        raise CheckpointError(f"{path}: each range must be finite, and its least value first.")
    digest = hashlib.sha256(ranges.astype("<f4").tobytes()).hexdigest()[:8]
    return Int8Ranges(least, np.where(steps == 0, np.float32(1), steps), digest)
