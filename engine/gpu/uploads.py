"""Small arrays of integers, copied to a device in one piece."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_SECTION = 64  # int32 values: sections begin at multiples of 256 bytes


def sections_of(sizes: Iterable[int]) -> tuple[slice, ...]:
    """Places of arrays of so many int32 values, one after another. The last one's end is the size of all."""
    begin, sections = 0, list[slice]()
    for size in sizes:
        sections.append(slice(begin, begin + size))
        begin += -(-size // _SECTION) * _SECTION
    return tuple(sections)


def upload(device: torch.device, *arrays: npt.NDArray[np.integer]) -> list[Tensor]:
    """int32 tensors with the values of `arrays`, in the order of the current stream, which is not waited for."""
    sections = sections_of([array.size for array in arrays])
    values = torch.empty(sections[-1].stop, dtype=torch.int32, pin_memory=device.type == "cuda")
    described = values.numpy()
    for array, section in zip(arrays, sections, strict=True):
        described[section] = array.reshape(-1)
    copied = values.to(device, non_blocking=True)  # torch keeps the pinned memory until the copy has ended
    return [copied[section].view(array.shape) for array, section in zip(arrays, sections, strict=True)]
