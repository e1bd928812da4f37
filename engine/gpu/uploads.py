"""Small arrays of integers, copied to a device in one piece."""

from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_SECTION = 64  # int32 values: arrays begin at multiples of 256 bytes


def upload(device: torch.device, *arrays: npt.NDArray[np.integer]) -> list[Tensor]:
    """int32 tensors with the values of `arrays`, in the order of the current stream, which is not waited for."""
    ends = list(accumulate(-(-array.size // _SECTION) * _SECTION for array in arrays))
    starts = [0, *ends[:-1]]
    values = torch.empty(ends[-1], dtype=torch.int32, pin_memory=device.type == "cuda")
    described = values.numpy()
    for array, start in zip(arrays, starts, strict=True):
        described[start : start + array.size] = array.reshape(-1)
    copied = values.to(device, non_blocking=True)  # torch keeps the pinned memory until the copy has ended
    return [copied[start : start + a.size].view(a.shape) for a, start in zip(arrays, starts, strict=True)]
